"""``landbridge demo``: the examples' demo, from the wheel or from a checkout."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import typer

from landbridge.cli import output
from landbridge.cli.options import option
from landbridge.errors import BadRequest


def demo(messages: int = option("Orders to send.", min=1000, value=100000)) -> None:
    """Run a small bus, kill it in the middle of the work, and count what is left.

    Examples:
      landbridge demo
      landbridge demo --messages 20000 --json
    """
    folder = examples()
    sys.path.insert(0, str(folder))  # the examples import each other by name
    main = runpy.run_path(str(folder / "demo.py"))["main"]
    raise typer.Exit(main(messages=messages, as_json=output.choice.json))


def examples() -> Path:
    """The folder of the examples: in the package where it was installed from a wheel, else at the root of the
    checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "demo.py").is_file():
            return folder
    raise BadRequest("the examples are not installed", hint="reinstall landbridge from its wheel")
