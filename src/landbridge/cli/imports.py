"""Objects that a command line names, as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import TypeVar

from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError

T = TypeVar("T")
#: The packages of the extra ``pipeline`` that steps import.
SPARK = ("pyspark", "pyarrow", "pandas", "numpy", "py4j")


def find(spec: str, kind: type[T], noun: str, hint: str) -> tuple[ModuleType, T]:
    """The module and the object that ``module:name`` stands for. The name may be left out where the module
    has one object of that kind."""
    name, colon, attribute = spec.partition(":")
    if not name or (colon and not attribute):
        raise BadRequest(f"{spec!r} names no {noun}", hint=hint)
    module = imported(name, hint)
    known = {each: value for each, value in vars(module).items() if isinstance(value, kind)}
    if not colon:
        if len(known) != 1:
            raise BadRequest(f"the module {name} has {counted(len(known), noun)}: name one", hint=hint)
        return module, next(iter(known.values()))
    value: object = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, kind):
        what = "nothing" if value is None else f"no {noun} but a value of type {type(value).__name__}"
        there = ", ".join(f"{name}:{each}" for each in known)
        raise BadRequest(f"there is {what} at {spec}", hint=f"there is {there}" if there else hint)
    return module, value


def imported(name: str, hint: str) -> ModuleType:
    """A module; the current folder is searched too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except BusError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            raise BadRequest(f"there is no module {name}", hint=hint) from None
        if (missing or "").partition(".")[0] in SPARK:
            raise  # whoever runs pipelines says what to install
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise BadRequest(
            f"the module {name} can't be imported: {type(error).__name__}: {error}",
            hint=f"it was raised in {at.filename}, line {at.lineno}",
        ) from error
