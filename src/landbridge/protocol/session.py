"""One connection's grammar, for both roles, without I/O: ``receive_data`` turns bytes into events,
``send`` turns a frame into buffers to write. Which frame may come when is one table.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from landbridge.errors import BadFrame, BadRequest, TooLarge, WrongVersion
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

#: A frame with its tail; the tail is a view of what was received.
Event: TypeAlias = tuple[Frame, memoryview]

_LENGTHS = struct.Struct("<II")
#: Before a connection has shown a token it may make us hold no more than this.
MAX_FRAME_BEFORE_HELLO = 16 << 10
#: The head alone; batches are in the tail.
MAX_HEAD = 1 << 20
DEFAULT_MAX_FRAME = frames.DEFAULT_MAX_FRAME
#: Bytes of a tail up to which copying it costs less than one more buffer in a system call.
SMALL = 512
#: Bytes from which on a frame is worth memory of its own while it comes in.
LARGE = 32 << 10

_encode = msgspec.msgpack.Encoder().encode


class Role(Enum):
    CLIENT = "client"
    TERMINAL = "terminal"


class State(Enum):
    OPENING = "opening"
    #: Two terminals are proving to each other who they are.
    JOINING = "joining"
    OPEN = "open"
    #: A link: from here on the roles are equal.
    LINKED = "linked"
    CLOSED = "closed"


#: What each role may receive in each state. Anything else is the peer's fault and ends the connection.
_MAY_COME: dict[tuple[Role, State], tuple[type[Frame], ...]] = {
    (Role.TERMINAL, State.OPENING): (frames.Hello, frames.Join),
    (Role.TERMINAL, State.JOINING): (frames.Prove, frames.Closing),
    (Role.TERMINAL, State.OPEN): (
        frames.Publish,
        frames.Settle,
        frames.Subscribe,
        frames.Credit,
        frames.Unsubscribe,
        frames.Transact,
        frames.Call,
        frames.Renew,
        frames.Ping,
        frames.Bye,
        frames.Fetch,
        frames.Stage,
        frames.Pull,
        frames.PublishOnce,
        frames.SendRequest,
        frames.SendReply,
        frames.Relay,
    ),
    (Role.CLIENT, State.OPENING): (frames.Welcome, frames.Closing),
    (Role.CLIENT, State.JOINING): (frames.Challenge, frames.Linked, frames.Closing),
    (Role.CLIENT, State.OPEN): (
        frames.Deliver,
        frames.Stored,
        frames.Done,
        frames.Refused,
        frames.Subscribed,
        frames.Lost,
        frames.Closing,
        frames.Fetched,
        frames.Requested,
        frames.Replied,
        frames.Paused,
        frames.Relayed,
    ),
}

_ON_LINK = (
    frames.Carry,
    frames.Kept,
    frames.Declined,
    frames.States,
    frames.Probe,
    frames.Echo,
    frames.DirectoryCopy,
    frames.Closing,
)
_MAY_COME |= {(role, State.LINKED): _ON_LINK for role in Role}
_WELCOME = {when: frozenset(kinds) for when, kinds in _MAY_COME.items()}

_DECODERS: dict[Role, msgspec.msgpack.Decoder[Any]] = {
    Role.TERMINAL: msgspec.msgpack.Decoder(frames.Asked),
    Role.CLIENT: msgspec.msgpack.Decoder(frames.Answered),
}
_DECODE_ON_LINK = msgspec.msgpack.Decoder(frames.OnLink).decode
_WITH_TAIL = frozenset(
    {
        frames.Publish,
        frames.PublishOnce,
        frames.Transact,
        frames.Deliver,
        frames.Carry,
        frames.Fetched,
        frames.Stage,
        frames.SendRequest,
        frames.SendReply,
        frames.Requested,
        frames.Replied,
        frames.Relay,
        frames.Relayed,
    }
)
#: Frames that change the state of a session, and those among them that tell a version.
_VERSIONED = (frames.Hello, frames.Welcome, frames.Join, frames.Challenge)
_CHANGING = frozenset({*_VERSIONED, frames.Linked})


class Session:
    def __init__(self, role: Role, *, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self.role = role
        self.max_frame = max_frame
        self._enter(State.OPENING)
        #: Received and not yet a whole frame.
        self._held = bytearray()
        #: How many bytes must be held before it is worth looking again.
        self._wanted = _LENGTHS.size
        #: How many bytes of what is held are there already, while a large frame is read to where it stays.
        self._filled = 0
        self._decode = _DECODERS[role].decode

    def _enter(self, state: State) -> None:
        self.state = state
        #: What may come now.
        self._welcome = _WELCOME.get((self.role, state), frozenset())

    def receive_data(self, data: bytes | bytearray) -> list[Event]:
        """The frames that are complete now. Raises PeerFault or TooLarge; then the session is closed."""
        if self.state is State.CLOSED:
            return []
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return []
            # Given away, not copied: the frames are views of it.
            data, self._held = self._held, bytearray()
        try:
            return self._parse(memoryview(data).toreadonly())
        except Exception:
            self.close()
            raise

    @property
    def filling(self) -> bool:
        """Is the rest of a large frame to be read into ``room()``?"""
        return self._filled > 0

    def room(self) -> memoryview | None:
        """Where the rest of a large frame belongs; None where none is under way."""
        if self._wanted < LARGE or not self._held:
            return None
        if not self._filled:
            held, self._held = self._held, bytearray(self._wanted)
            self._held[: len(held)] = held
            self._filled = len(held)
        return memoryview(self._held)[self._filled :]

    def filled(self, count: int) -> bytearray | None:
        """So much of it was read. When it is whole, the frame, to be given to ``receive_data``."""
        self._filled += count
        if self._filled < self._wanted:
            return None
        frame, self._held = self._held, bytearray()
        self._wanted, self._filled = _LENGTHS.size, 0
        return frame

    def _parse(self, view: memoryview) -> list[Event]:
        events: list[Event] = []
        at, size = 0, len(view)
        while size - at >= _LENGTHS.size:
            length, head = _LENGTHS.unpack_from(view, at)
            self._check_lengths(length, head)
            begin = at + _LENGTHS.size
            if size - begin < length:
                self._wanted = _LENGTHS.size + length
                break
            events.append(self._frame(view[begin : begin + head], view[begin + head : begin + length]))
            at = begin + length
        else:
            self._wanted = _LENGTHS.size
        if at < size:
            self._held += view[at:]
        return events

    def _check_lengths(self, length: int, head: int) -> None:
        known = self.state is State.OPEN or self.state is State.LINKED
        most = self.max_frame if known else min(self.max_frame, MAX_FRAME_BEFORE_HELLO)
        if length > most:
            raise TooLarge(f"a frame of {length} bytes, allowed are {most}")
        if not 0 < head <= length or head > MAX_HEAD:
            raise BadFrame(f"a frame of {length} bytes with a head of {head}")

    def _frame(self, head: memoryview, tail: memoryview) -> Event:
        try:
            frame: Frame = self._decode(head)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"a frame that doesn't decode: {error}") from None
        kind = type(frame)
        if kind not in self._welcome:
            raise BadFrame(f"{kind.__name__} while {self.state.value}")
        if tail and kind not in _WITH_TAIL:
            raise BadFrame(f"{kind.__name__} with a tail of {len(tail)} bytes")
        if kind in _CHANGING:
            self._follow(frame)
        return frame, tail

    def _follow(self, frame: Frame) -> None:
        """The state that the session is in after a frame."""
        if isinstance(frame, _VERSIONED):
            if frame.version != frames.VERSION:
                raise WrongVersion(f"the peer speaks version {frame.version}, this side {frames.VERSION}")
            self._enter(State.OPEN if isinstance(frame, frames.Hello | frames.Welcome) else State.JOINING)
        else:
            self.link()

    def join(self) -> None:
        """This side has asked for a link instead of saying hello."""
        self._enter(State.JOINING)

    def link(self) -> None:
        """Both sides know who the other is."""
        self._enter(State.LINKED)
        self._decode = _DECODE_ON_LINK

    def close(self) -> None:
        self._enter(State.CLOSED)
        self._held = bytearray()
        self._wanted, self._filled = _LENGTHS.size, 0

    @staticmethod
    def send(frame: Frame, *tail: bytes | memoryview) -> list[bytes | memoryview]:
        """The buffers of a frame, in order; a tail that is not small is passed on uncopied. TooLarge for a
        head that the peer would not take."""
        try:
            head = _encode(frame)
        except (OverflowError, UnicodeEncodeError) as error:
            # A number from JSON may have any size, and a text from a form half of a surrogate pair.
            raise BadRequest(f"a request or an answer that can't be sent: {error}") from None
        if len(head) > MAX_HEAD:
            raise TooLarge(
                f"a request or an answer of {len(head)} bytes, allowed are {MAX_HEAD}", hint="split it"
            )
        if len(tail) == 1 and len(tail[0]) <= SMALL:
            only = tail[0]
            return [b"".join((_LENGTHS.pack(len(head) + len(only), len(head)), head, only))]
        length = len(head) + sum(map(len, tail))
        return [_LENGTHS.pack(length, len(head)) + head, *tail]
