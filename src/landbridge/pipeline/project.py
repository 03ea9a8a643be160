"""A project to begin with: a step, its test, and the same as a Declarative Pipeline."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from string import Template

from landbridge.errors import BadRequest

#: Of the project → of the package. A dot before a file's name would hide it from some packagers.
FILES = {
    "steps.py": "steps.py",
    "test_steps.py": "test_steps.py",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "declarative/spark-pipeline.yml": "declarative/spark-pipeline.yml",
    "declarative/transformations/invoices.py": "declarative/transformations/invoices.py",
}


def texts(name: str, folder: Path) -> dict[Path, str]:
    """What a project called ``name`` has in its folder."""
    templates = resources.files("landbridge.pipeline") / "templates"
    # Not as_uri(): Hadoop takes a path as it is, and would look for a folder with %20 in its name.
    storage = f"file://{folder / 'declarative' / 'storage'}"
    said = {"name": name, "quoted_name": json.dumps(name), "quoted_storage": json.dumps(storage)}
    found = {}
    for path, template in FILES.items():
        text = (templates / template).read_text(encoding="utf-8")
        found[folder / path] = text if path.endswith(".py") else Template(text).substitute(said)
    return found


def write(name: str, folder: Path, *, force: bool = False) -> list[Path]:
    """Write a project. Where one of its files is there already, nothing is written: BadRequest."""
    folder = folder.resolve()
    files = texts(name, folder)
    there = [str(path.relative_to(folder)) for path in files if path.exists()]
    if there and not force:
        raise BadRequest(
            f"{folder} has {', '.join(there)} already",
            hint="name another folder, or write over what is there with --force",
        )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)
