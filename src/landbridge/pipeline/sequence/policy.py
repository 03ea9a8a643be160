"""What is done about gaps in a sequence, as an option of a job."""

from __future__ import annotations

from typing import Literal, NamedTuple

from landbridge.core.events.sequencer import Sequencer
from landbridge.errors import BadOption

#: Rows that may wait for a missing number, per source. A tenth of the core's, for here are many sources.
HOLD = 10_000


class Policy(NamedTuple):
    """What is done about gaps; as the sequencer has it."""

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
