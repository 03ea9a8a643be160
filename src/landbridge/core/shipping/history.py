"""The history of a topic's log: which runs of its terminal have added to it, and where the log ended when
each of them began.

A terminal that is restored from a backup has the log as it was then, and goes on from there. A destination
remembers the run that it has last heard of. Whatever it knows beyond the end at which the next run in the
source's history began has been lost by the source: in that run, other messages got these offsets. The
destination may have heard nothing of that run, so a source tells all of them.

A run is written down in the commit that first adds to the log in it, so a run that isn't there has added
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from landbridge.errors import StoreCorrupt

#: (run, where the log ended when it began), oldest first.
History: TypeAlias = Sequence[tuple[int, int]]

#: Runs that are remembered. Of more, the two oldest count as one that began where the older one did: then a
#: destination that has heard of neither forgets more than it needs to.
MOST_RUNS = 16

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


def decode(raw: bytes) -> list[tuple[int, int]]:
    try:
        return _decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the history of a log doesn't decode: {error}") from None


def with_run(history: History, run: int, began: int) -> list[tuple[int, int]]:
    after = [*history, (run, began)]
    while len(after) > MOST_RUNS:
        (_, first), (second, _), *rest = after
        after = [(second, first), *rest]
    return after


def first_change(history: History, known: int) -> int:
    """Where the log ended when the first run after the known one began. Runs are in order, unless a clock was
    set back: then everything may have changed that the history tells of."""
    later = [began for run, began in history if run > known]
    return min(later or [began for _, began in history], default=0)
