"""A project to start from: a step, its test, and the same as a Declarative Pipeline."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from string import Template

from landbridge.errors import BadRequest

#: File of the project → its template. Some packagers leave out files whose names begin with a dot.
FILES = {
    "steps.py": "steps.py",
    "test_steps.py": "test_steps.py",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "declarative/spark-pipeline.yml": "declarative/spark-pipeline.yml",
    "declarative/transformations/invoices.py": "declarative/transformations/invoices.py",
}


def texts(name: str, folder: Path) -> dict[Path, str]:
    """path → text of the files of a project called ``name``."""
    templates = resources.files("landbridge.pipeline.jobs") / "templates"
    # Not as_uri(): Hadoop takes the path literally, and would look for a folder with %20 in its name.
    storage = f"file://{folder / 'declarative' / 'storage'}"
    values = {"name": name, "quoted_name": json.dumps(name), "quoted_storage": json.dumps(storage)}
    found = {}
    for path, template in FILES.items():
        text = (templates / template).read_text(encoding="utf-8")
        found[folder / path] = text if path.endswith(".py") else Template(text).substitute(values)
    return found


def write(name: str, folder: Path, *, force: bool = False) -> list[Path]:
    """Write a project and return its files. Raises BadRequest, before anything is written, if one exists."""
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
