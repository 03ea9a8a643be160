"""Operations on stages."""

from __future__ import annotations

from typing import Annotated

from landbridge.protocol.operations.common import StageName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class OfStage(Arguments, frozen=True):
    """A stage by its name."""

    stage: StageName


class StageCommit(OfStage, frozen=True, kw_only=True):
    """Rows on a stage to publish."""

    number: Annotated[int, about("Number of the commit; each number of a stage is decided once.")]
    log: Annotated[int | None, about("Number of the stage's log that the runs are in; None without runs.")]
    runs: Annotated[list[tuple[str, list[tuple[int, int]]]], about("By topic, the (first, end) of offsets.")]


class StageDrop(OfStage, frozen=True, kw_only=True):
    """A stage to empty."""

    forget: Annotated[bool, about("Also forget the number of its last commit.")] = False


class StageDecided(Result, frozen=True, kw_only=True):
    """The outcome of a commit. Whatever it says, the commit of this number is published."""

    decided: Annotated[bool, about("This call decided it; False: an earlier one had.")]


class StageShown(Result, frozen=True, kw_only=True):
    """A stage."""

    number: Annotated[int | None, about("Number of its last commit; None if there was none.")]


# -- the entries ---------------------------------------------------------------------------------------


STAGE_COMMIT = operation(
    "stage.commit", StageCommit, StageDecided, "POST /v1/stages/{stage}/commits",
    "Publish these runs of a stage's log once, as the commit of this number.", audited=False,
    where="stage:{stage}",
)  # fmt: skip
STAGE_SHOW = operation(
    "stage.show",
    OfStage,
    StageShown,
    "GET /v1/stages/{stage}",
    "Show the last commit of a stage.",
    where="stage:{stage}",
)
STAGE_DROP = operation(
    "stage.drop", StageDrop, type(None), "DELETE /v1/stages/{stage}",
    "Remove what is on a stage and not published.", audited=False,
    where="stage:{stage}",
)  # fmt: skip
