"""``landbridge pipeline init``: a project to begin with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from landbridge.cli import output
from landbridge.cli.options import argument, flag, option

NEXT = (
    'landbridge publish orders \'{"id": 1, "customer": "anna", "amount": 250}\'',
    "landbridge pipeline run steps:invoices --once",
    "landbridge subscribe invoices --from earliest --count 1",
)


def init(
    folder: Path = argument("FOLDER", "Made if it isn't there.", show_default=True, value=Path(".")),
    name: str | None = option("Of the project; the folder's unless said.", metavar="NAME"),
    force: bool = flag("Write over files that are there.", "--force"),
) -> None:
    """Write a small pipeline to begin with: a step, its test, and the same as a Declarative Pipeline.

    Examples:
      landbridge pipeline init shop
      landbridge pipeline init --name shop
    """
    from landbridge.pipeline.jobs import project

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
