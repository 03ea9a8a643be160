"""``landbridge pipeline init``: a project to begin with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import Json

NEXT = (
    'landbridge publish orders \'{"id": 1, "customer": "anna", "amount": 250}\'',
    "landbridge pipeline run steps:invoices --once",
    "landbridge subscribe invoices --from earliest --count 1",
)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if it isn't there.")] = Path("."),
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the project; the folder's unless said.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    json: Json = False,
) -> None:
    """Write a small pipeline to begin with: a step, its test, and the same as a Declarative Pipeline.

    \b
    Examples:
      landbridge pipeline init shop
      landbridge pipeline init --name shop
    """
    from landbridge.pipeline import project

    written = project.write(name or folder.resolve().name, folder, force=force)
    whole = folder.resolve()
    inside = [] if whole == Path.cwd() else [f"cd {shlex.quote(os.fspath(folder))}"]
    result = {
        "folder": str(whole),
        "files": [str(path.relative_to(whole)) for path in written],
        "next": [*inside, "pytest", *NEXT],
    }
    output.emit(result, _show)


def _show(result: dict[str, Any]) -> None:
    output.done(f"wrote {', '.join(result['files'])} to {result['folder']}")
    print("\nNow:")
    for line in result["next"]:
        print(f"  {line}")
