"""The option of a job that says what is done about gaps in a sequence."""

from __future__ import annotations

from typing import Literal, NamedTuple

from landbridge.core.events.sequencer import Sequencer
from landbridge.errors import BadOption

#: Rows of a source that may wait for a missing number. A tenth of the core's, because there are many sources.
HOLD = 10_000


class GapPolicy(NamedTuple):
    """What is done about gaps. The fields are the arguments of the core's sequencer."""

    first: int = 1
    hold: int = HOLD
    on_gap: Literal["skip", "refuse"] = "skip"
    gap_within: float | None = None

    def check(self) -> None:
        if self.hold < 1:
            raise BadOption(f"hold is how many may wait for a missing number, at least 1, not {self.hold}")
        if self.first < 0:
            raise BadOption(f"sequence numbers begin at 0 or later, not at {self.first}")
        if self.on_gap not in ("skip", "refuse"):
            raise BadOption(f"on_gap is skip or refuse, not {self.on_gap!r}")
        if self.gap_within is not None and self.gap_within <= 0:
            raise BadOption(f"gap_within is a span of time, not {self.gap_within}")

    def sequencer(self) -> Sequencer:
        return Sequencer(self.first, hold=self.hold, on_gap=self.on_gap, gap_within=self.gap_within)
