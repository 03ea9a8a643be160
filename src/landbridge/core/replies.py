"""The headers by which a stored message asks for a reply, and by which a stored reply says what it answers.

An event has an id. The message that carries it names the terminal that waits for the outcome and the id; the
reply is a message of the topic ``$replies`` whose key is that terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from landbridge.core.names import check_name
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

#: The topic of replies. Each terminal writes to its own what consumers reply, and reads there what has come
#: for the events that were triggered here.
TOPIC = "$replies"

_GROUP = "outcomes."


def group_of(terminal: str) -> str:
    """The group of ``$replies`` by which a terminal gets the replies that are for it."""
    return _GROUP + terminal


def terminal_of(group: str) -> str | None:
    """The terminal whose group that is; None for any other group."""
    return group.removeprefix(_GROUP) if group.startswith(_GROUP) else None


#: Of the message: the terminal that gets the reply, the event's id, and when nobody wants it any more
#: (microseconds since 1970).
REPLY_TO, CORRELATION, DEADLINE = "lb-reply-to", "lb-correlation", "lb-deadline"
#: Of the reply, beside the correlation: the subject that replied; and of a failure its code and status.
SOURCE, CODE, STATUS = "lb-source", "lb-code", "lb-status"

#: Where outcomes go that are for a URL: whoever posts them is a consumer of this topic.
CALLBACKS = "$callbacks"
#: Seconds that an outcome is kept, and the longest time that an event may wait for it.
KEEP = 86_400.0
LONGEST_WAIT = 7 * 86_400.0
#: Bytes of a payload, of an event or of its outcome: both travel in the heads of frames.
LARGEST = 512 << 10
#: Characters of an event's id, of a callback, and of a failure's text.
LONGEST_ID, LONGEST_CALLBACK, LONGEST_TEXT = 64, 2000, 4096

#: "pending": no reply has come. "done": one has. "failed": the service replied that it failed. "timed_out":
#: no reply came in time.
EventState: TypeAlias = Literal["pending", "done", "failed", "timed_out"]


class TriggeredEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event with an outcome, as the terminal keeps it where it was triggered."""

    id: str
    subject: str  #: who triggered it
    topic: str
    deadline: int  #: microseconds since 1970
    #: Where the outcome goes: "" = nowhere, it is asked for; "topic:NAME"; or a URL.
    callback: str = ""
    state: EventState = "pending"
    ended_at: int = 0
    #: Of a reply: its offset in the topic of replies, and the subject that replied.
    offset: int = -1
    source: str = ""
    #: Of a failure.
    code: str = ""
    status: int = 0
    text: str = ""

    @property
    def forget_at(self) -> int:
        """When it is no longer kept, unless it ends before; microseconds since 1970."""
        return (self.ended_at or self.deadline) + int(KEEP * SECOND)

    @property
    def due_at(self) -> int:
        """When something has to be done about it that nobody else causes."""
        return self.forget_at if self.ended_at else self.deadline

    def replied(self, now: int, offset: int, headers: Mapping[str, Any], text: str) -> TriggeredEvent:
        """The event once a reply has come. ``text``: the payload of a reply that says it failed."""
        source, code, status = (headers.get(name) for name in (SOURCE, CODE, STATUS))
        failed = isinstance(code, str) and bool(code)
        return msgspec.structs.replace(
            self,
            state="failed" if failed else "done",
            ended_at=now,
            offset=offset,
            source=source if isinstance(source, str) else "",
            code=code if failed else "",
            status=status if failed and isinstance(status, int) else 0,
            text=text[:LONGEST_TEXT] if failed else "",
        )

    def timed_out(self, now: int) -> TriggeredEvent:
        """The event once its deadline is over."""
        text = f"no reply from {self.topic} in time"
        return msgspec.structs.replace(self, state="timed_out", ended_at=now, code="timed_out", text=text)


def check_callback(callback: str) -> str:
    """BadRequest for what is neither a topic nor a URL."""
    kind, _, rest = callback.partition(":")
    if not callback or (kind == "topic" and check_name(rest, "topic")):
        return callback
    if kind not in ("http", "https") or not rest.startswith("//") or not rest[2:].isprintable():
        raise BadRequest(f"no callback {callback[:60]!r}", hint="topic:NAME, or a URL with http or https")
    if len(callback) > LONGEST_CALLBACK:
        raise BadRequest(f"a callback of {len(callback)} characters, at most {LONGEST_CALLBACK}")
    return callback


def check_id(id: str) -> str:
    """BadRequest for what can't be the id of an event."""
    if not 0 < len(id) <= LONGEST_ID or not id.isprintable() or "/" in id:
        raise BadRequest(
            f"an event's id of {len(id)} characters",
            hint=f"1 to {LONGEST_ID} printable characters without '/'",
        )
    return id
