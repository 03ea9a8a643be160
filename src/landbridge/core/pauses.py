"""A pause: what an operator has stopped for a while, with a note for others. A topic takes no messages, a
group hands none out, a service gets none.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from landbridge.errors import BadRequest

#: Characters of a note.
LONGEST_NOTE = 2000


class PauseNote(Struct, frozen=True, kw_only=True):
    """Since when something is paused, by whom, and why."""

    #: Microseconds.
    paused_at: int
    #: The service whose token was shown.
    paused_by: str
    note: str = ""
    #: Of a topic: its groups hand nothing out either.
    delivery: bool = False

    @property
    def told(self) -> str:
        """By whom and why, for people."""
        return f"by {self.paused_by}: {self.note}" if self.note else f"by {self.paused_by}"


def pause(
    found: PauseNote | None, now: int, who: str, note: str = "", *, delivery: bool = False
) -> PauseNote:
    """The pause of something that is to be paused. What is paused already keeps the moment since when; with
    the same note, it keeps everything."""
    if len(note) > LONGEST_NOTE:
        raise BadRequest(f"a note of {len(note)} characters, allowed are {LONGEST_NOTE}")
    if found is None:
        return PauseNote(paused_at=now, paused_by=who, note=note, delivery=delivery)
    if (found.note, found.delivery) == (note, delivery):
        return found
    return replace(found, paused_by=who, note=note, delivery=delivery)
