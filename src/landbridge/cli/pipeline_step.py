"""``landbridge pipeline run MODULE:STEP``: a pipeline of one's own."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli.imports import imported
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Checkpoint, Conf, Every, Master, Once, checkpoint_of, run_stream
from landbridge.errors import BadRequest, SparkMissing

if TYPE_CHECKING:
    from landbridge.pipeline.step import Step

HINT = "as in 'landbridge pipeline run shop.steps:invoices', where shop/steps.py says @pipeline.step(…)"


def step(
    spec: Annotated[str, typer.Argument(metavar="MODULE:STEP", help="The current folder is searched too.")],
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Every = 0.0,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Run a step of your own.

    \b
    Examples:
      landbridge pipeline run shop.steps:invoices
      landbridge pipeline run shop.steps:invoices --once --checkpoint checkpoints/invoices
    """
    found, make = None, None
    try:
        found = find(spec)
    except Exception as error:
        # A UDF of a module that names its type by a text needs a session already when it is defined.
        if "SESSION_OR_CONTEXT_NOT_EXISTS" not in str(error):
            raise
        make = partial(find, spec)
    run_stream(
        found,
        make=make,
        context=context,
        master=master,
        checkpoint=checkpoint or checkpoint_of(spec),  # two modules may have steps of the same name
        once=once,
        every=every,
        conf=conf,
    )


def find(spec: str) -> Step:
    """The step that ``module:name`` stands for."""
    from landbridge.pipeline.step import Step

    name, _, attribute = spec.partition(":")
    if not name or not attribute:
        raise BadRequest(f"{spec!r} names no step", hint=HINT)
    try:
        module = imported(name, HINT)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise SparkMissing(f"the module {error.name} is not installed") from None
    value: Any = getattr(module, attribute, None)
    if not isinstance(value, Step):
        what = "nothing" if value is None else f"no step but a value of type {type(value).__name__}"
        there = [f"{name}:{each}" for each, found in vars(module).items() if isinstance(found, Step)]
        raise BadRequest(f"there is {what} at {spec}", hint=f"there is {', '.join(there)}" if there else HINT)
    _carry(module)
    return value


def _carry(module: ModuleType) -> None:
    """Send what a module of the current folder defines along with the plan: the machines of a cluster can't
    import it. What is installed is installed there as well."""
    where = getattr(module, "__file__", None)
    if where is None or not Path(where).resolve().is_relative_to(Path.cwd().resolve()):
        return
    try:
        pickle: Any = import_module("pyspark.cloudpickle")
    except ImportError as error:
        raise SparkMissing(f"the module {error.name} is not installed") from None
    pickle.register_pickle_by_value(module)
