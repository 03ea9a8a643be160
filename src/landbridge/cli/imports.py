"""Modules that a command line names."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from landbridge.errors import BadRequest


def imported(name: str, hint: str) -> ModuleType:
    """A module; the current folder is searched too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if it is the module itself that is missing. What it imports is its author's affair.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise BadRequest(f"there is no module {name}", hint=hint) from None
