"""The wire's grammar: two sessions back to back, and one session against strangers."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landbridge.errors import BadFrame, BadRequest, BusError, TooLarge, WrongVersion
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import (
    DEFAULT_MAX_FRAME,
    LARGE,
    MAX_FRAME_BEFORE_HELLO,
    MAX_HEAD,
    Role,
    Session,
    State,
)

BIG = 1 << 62
HELLO = frames.Hello(frames.VERSION, "token", "tests")
WELCOME = frames.Welcome(frames.VERSION, "terminal", 1 << 24, 1 << 22, 1 << 23)

#: One of every frame with every field away from its default, and with a tail where it may have one.
ASKED: list[tuple[Frame, bytes]] = [
    (HELLO, b""),
    (frames.Publish(1, "orders", b"producer", BIG), b"batch"),
    (frames.Subscribe(2, 7, "orders", "billing", 1_000_000, 1_800_000_000_000_000), b""),
    (frames.Subscribe(3, 8, "orders", None, 1, "latest"), b""),
    (
        frames.Settle(
            0,
            7,
            [
                frames.Settlement(BIG, [(0, 3), (5, BIG)], "ack"),
                frames.Settlement(9, [], "requeue", 1.5, "cause"),
                frames.Settlement(9, [(1, 2)], "requeue", 2),
            ],
        ),
        b"",
    ),
    (frames.Credit(7, 10, 1000), b""),
    (frames.Unsubscribe(4, 7), b""),
    (frames.Transact(5, b"p", 1, 1, [("a", 2), ("b", 3)], [(7, 9, [(0, 1)])]), b"aabbb"),
    (frames.Call(6, "topic.create", {"name": "orders", "retention": {"max_age": 1.5}, "x": None}), b""),
    (frames.Renew(7, "t" * 8192), b""),
    (frames.Ping(8), b""),
    (frames.Bye(b"producer"), b""),
    (frames.Fetch(9, "orders", BIG, 1 << 40), b""),
    (frames.Stage(10, "query", "orders"), b"batch"),
    (frames.Pull(3, 10), b""),
    (frames.PublishOnce(11, "orders", "key", b"p"), b"batch"),
    (frames.SendRequest(11, "prices.quote", 2_000_000, 0, {"a": 1, "b": b"\xff"}, b"key"), b"question"),
    (frames.SendReply(0, 1, BIG, -1, {"c": True}), b"answer"),
    (frames.SendReply(12, 1, 7, 3, {}, frames.Failure("no_thing", 404, "none")), b"-"),
    (frames.Relay(13, "append", {"topic": "t"}), b"batch"),
]
ANSWERED: list[tuple[Frame, bytes]] = [
    (WELCOME, b""),
    (frames.Stored(1, -1), b""),
    (frames.Subscribed(2, 7, "billing", "queue", True, 0.5), b""),
    (frames.Deliver(7, 9, [(0, 2), (4, 5)], True, {4: 2}), bytes(range(256)) * 20),
    (frames.Done(4, [1, {"a": [None, "b"]}]), b""),
    (frames.Refused(5, "lease_lost", "message", "hint", 7), b""),
    (frames.Lost(7, "unknown_topic", "message", "hint"), b""),
    (frames.Fetched(9, 3, BIG, [(3, 2, 4, ""), (5, 1, 2, "ter_a")]), b"aaaabb"),
    (frames.Requested(1, BIG, "prices.quote", 5, "shop", {"a": 1}, b"key"), b"question"),
    (frames.Replied(11, "quotes", False, {}, frames.Failure("no_thing", 404, "none")), b""),
    (frames.Relayed(13, 7), b"batch"),
    (frames.Paused(3, True, "ana", "moving house", 1_800_000_000_000_000), b""),
    (frames.Closing("shutting_down", "message", "hint"), b""),
]
#: What makes a link, at the side that was dialled and at the one that dials; then what goes over it both
#: ways.
JOINED: list[tuple[Frame, bytes]] = [
    (frames.Join(frames.VERSION, "cus_a", "ter_a", bytes(range(16))), b""),
    (frames.Prove(b"s" * 64), b""),
]
CHALLENGED: list[tuple[Frame, bytes]] = [
    (frames.Challenge(frames.VERSION, "ter_b", bytes(range(16)), b"s" * 64), b""),
    (frames.Linked(1 << 24), b""),
]
LINKED: list[tuple[Frame, bytes]] = [
    (frames.Carry(BIG, bytes(16), 2, "ter_a", "ter_b", 16, ["ter_a"], ["ter_c", "ter_b"], 3), b"sealed"),
    (frames.Kept([1, 2, BIG]), b""),
    (frames.Declined(3, "no_path"), b""),
    (frames.States([(b"body", b"signature")]), b""),
    (frames.Probe(4), b""),
    (frames.Echo(4), b""),
    (frames.DirectoryCopy(b"body", b"signature"), b""),
    (frames.Closing("shutting_down", "message", "hint"), b""),
]


def encoded(frame: Frame, tail: bytes = b"") -> bytes:
    return b"".join(Session.send(frame, *([tail] if tail else [])))


def raw(head: bytes, tail: bytes = b"") -> bytes:
    return struct.pack("<II", len(head) + len(tail), len(head)) + head + tail


def opened(role: Role, **options: Any) -> Session:
    session = Session(role, **options)
    session.receive_data(encoded(HELLO if role is Role.TERMINAL else WELCOME))
    assert session.state is State.OPEN
    return session


def received(session: Session, chunks: Iterable[bytes]) -> list[tuple[Frame, bytes]]:
    return [(frame, bytes(tail)) for chunk in chunks for frame, tail in session.receive_data(chunk)]


def bytewise(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


def chunked(data: bytes, seed: int) -> Iterator[bytes]:
    source, at = random.Random(seed), 0
    while at < len(data):
        size = source.choice((0, 1, 2, 7, 8, 9, 100, 5000))
        yield data[at : at + size]
        at += size


TRANSCRIPTS = [(Role.TERMINAL, ASKED), (Role.CLIENT, ANSWERED)]
BY_ROLE = pytest.mark.parametrize(("role", "transcript"), TRANSCRIPTS, ids=["to-terminal", "to-client"])


# -- two sessions back to back ------------------------------------------------------------------------


def test_every_frame_is_in_a_transcript() -> None:
    every = ASKED + ANSWERED + JOINED + CHALLENGED + LINKED
    assert {type(frame) for frame, _ in every} == set(Frame.__subclasses__())


@pytest.mark.parametrize("chunks", [lambda data: [data], bytewise, lambda data: chunked(data, 1)])
def test_a_link_is_made_and_then_both_sides_may_say_the_same(chunks: Any) -> None:
    listener, dialler = Session(Role.TERMINAL), Session(Role.CLIENT)
    dialler.join()
    for session, opening in ((listener, JOINED), (dialler, CHALLENGED)):
        assert received(session, chunks(b"".join(encoded(*each) for each in opening))) == opening
        if session is listener:  # it is for the terminal to say that the proof is good
            assert session.state is State.JOINING
            session.link()
        assert session.state is State.LINKED
        assert received(session, chunks(b"".join(encoded(*each) for each in LINKED))) == LINKED


@pytest.mark.parametrize(
    "frame", [frame for frame, _ in ASKED + ANSWERED if not isinstance(frame, frames.Closing)]
)
def test_a_link_takes_nothing_that_a_client_or_its_terminal_says(frame: Frame) -> None:
    session = Session(Role.TERMINAL)
    session.link()
    with pytest.raises(BadFrame):
        session.receive_data(encoded(frame))


@pytest.mark.parametrize("frame", [frame for frame, _ in LINKED if not isinstance(frame, frames.Closing)])
def test_nothing_of_a_link_is_taken_before_the_proof(frame: Frame) -> None:
    listener = Session(Role.TERMINAL)
    listener.receive_data(encoded(*JOINED[0]))
    with pytest.raises(BadFrame):
        listener.receive_data(encoded(frame))


@BY_ROLE
def test_transcript_arrives_as_it_was_sent(role: Role, transcript: list[tuple[Frame, bytes]]) -> None:
    sent = b"".join(encoded(frame, tail) for frame, tail in transcript)
    assert received(Session(role), [sent]) == transcript


@BY_ROLE
def test_transcript_arrives_one_byte_at_a_time(role: Role, transcript: list[tuple[Frame, bytes]]) -> None:
    sent = b"".join(encoded(frame, tail) for frame, tail in transcript)
    assert received(Session(role), bytewise(sent)) == transcript


@BY_ROLE
@pytest.mark.parametrize("seed", range(20))
def test_transcript_arrives_in_random_chunks(
    role: Role, transcript: list[tuple[Frame, bytes]], seed: int
) -> None:
    sent = b"".join(encoded(frame, tail) for frame, tail in transcript)
    assert received(Session(role), chunked(sent, seed)) == transcript


def test_conversation_opens_both_sides() -> None:
    client, terminal = Session(Role.CLIENT), Session(Role.TERMINAL)
    assert (client.state, terminal.state) == (State.OPENING, State.OPENING)
    assert received(terminal, [encoded(HELLO)]) == [(HELLO, b"")]
    assert received(client, [encoded(WELCOME)]) == [(WELCOME, b"")]
    assert (client.state, terminal.state) == (State.OPEN, State.OPEN)
    for (asked, asked_tail), (answered, answered_tail) in zip(ASKED[1:], ANSWERED[1:], strict=False):
        assert received(terminal, bytewise(encoded(asked, asked_tail))) == [(asked, asked_tail)]
        assert received(client, bytewise(encoded(answered, answered_tail))) == [(answered, answered_tail)]


def test_tail_is_passed_on_uncopied() -> None:
    tail = memoryview(bytes(1000))
    buffers = Session.send(frames.Publish(1, "t", b"p", 1), tail)
    assert buffers[1] is tail


def test_a_tail_of_several_buffers_arrives_joined() -> None:
    frame = frames.Transact(1, b"p", 1, 1, [("a", 1), ("b", 2)], [])
    sent = b"".join(Session.send(frame, b"1", b"22"))
    assert received(opened(Role.TERMINAL), [sent]) == [(frame, b"122")]


_natural = st.integers(0, BIG)
_text = st.text(max_size=20)
_run = st.tuples(_natural, _natural)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_producer = st.binary(min_size=1, max_size=64)
_tail = st.binary(max_size=300)
_asked = st.one_of(
    st.tuples(st.builds(frames.Publish, _natural, _text, _producer, st.integers(1, BIG)), _tail),
    st.tuples(
        st.builds(frames.Subscribe, _natural, _natural, _text, st.none() | _text, st.integers(1, 10**6)),
        st.just(b""),
    ),
    st.tuples(
        st.builds(
            frames.Settle,
            _natural,
            _natural,
            st.lists(
                st.builds(
                    frames.Settlement,
                    _natural,
                    st.lists(_run, max_size=3),
                    _text,
                    st.none() | st.floats(allow_nan=False),
                    _text,
                ),
                max_size=3,
            ),
        ),
        st.just(b""),
    ),
    st.tuples(st.builds(frames.Call, _natural, _text, st.dictionaries(_text, _json)), st.just(b"")),
    st.tuples(
        st.builds(
            frames.Transact,
            _natural,
            _producer,
            st.integers(1, BIG),
            _natural,
            st.lists(st.tuples(_text, _natural), max_size=3),
            st.lists(st.tuples(_natural, _natural, st.lists(_run, max_size=2)), max_size=2),
        ),
        _tail,
    ),
)


@given(st.lists(_asked, max_size=6), st.integers(0, 1 << 30))
def test_any_frames_arrive_in_any_chunks(sent: list[tuple[Frame, bytes]], seed: int) -> None:
    data = b"".join(encoded(frame, tail) for frame, tail in sent)
    assert received(opened(Role.TERMINAL), chunked(data, seed)) == sent


# -- the state table ----------------------------------------------------------------------------------


def refused(session: Session, data: bytes, error: type[BusError] = BadFrame) -> None:
    with pytest.raises(error):
        session.receive_data(data)
    assert session.state is State.CLOSED
    # Whatever comes after is not even looked at.
    assert session.receive_data(encoded(HELLO) + b"garbage") == []


@pytest.mark.parametrize("frame", ASKED[1:], ids=lambda pair: type(pair[0]).__name__)
def test_nothing_but_hello_opens_a_terminal(frame: tuple[Frame, bytes]) -> None:
    refused(Session(Role.TERMINAL), encoded(*frame))


@pytest.mark.parametrize("frame", list(ANSWERED[1:-1]), ids=lambda pair: type(pair[0]).__name__)
def test_nothing_but_welcome_or_closing_opens_a_client(frame: tuple[Frame, bytes]) -> None:
    refused(Session(Role.CLIENT), encoded(*frame))


def test_a_terminal_may_close_instead_of_a_welcome() -> None:
    closing = frames.Closing("unauthenticated", "no")
    assert received(Session(Role.CLIENT), [encoded(closing)]) == [(closing, b"")]


def test_second_hello_is_refused() -> None:
    refused(opened(Role.TERMINAL), encoded(HELLO))


def test_second_hello_in_the_same_chunk_is_refused() -> None:
    refused(Session(Role.TERMINAL), encoded(HELLO) * 2)


def test_second_welcome_is_refused() -> None:
    refused(opened(Role.CLIENT), encoded(WELCOME))


@pytest.mark.parametrize("frame", ANSWERED, ids=lambda pair: type(pair[0]).__name__)
@pytest.mark.parametrize("state", [State.OPENING, State.OPEN])
def test_terminal_takes_no_answers(frame: tuple[Frame, bytes], state: State) -> None:
    session = opened(Role.TERMINAL) if state is State.OPEN else Session(Role.TERMINAL)
    refused(session, encoded(*frame))


@pytest.mark.parametrize("frame", ASKED, ids=lambda pair: type(pair[0]).__name__)
@pytest.mark.parametrize("state", [State.OPENING, State.OPEN])
def test_client_takes_no_requests(frame: tuple[Frame, bytes], state: State) -> None:
    session = opened(Role.CLIENT) if state is State.OPEN else Session(Role.CLIENT)
    refused(session, encoded(*frame))


@pytest.mark.parametrize(
    "frame", [pair[0] for pair in ASKED[1:] if not pair[1]], ids=lambda frame: type(frame).__name__
)
def test_a_tail_where_none_belongs_is_refused(frame: Frame) -> None:
    refused(opened(Role.TERMINAL), encoded(frame, b"tail"))


def test_a_tail_on_hello_is_refused() -> None:
    refused(Session(Role.TERMINAL), encoded(HELLO, b"tail"))


def test_a_closed_session_hears_nothing() -> None:
    session = opened(Role.TERMINAL)
    session.close()
    assert session.receive_data(encoded(frames.Ping(1))) == []


# -- versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, -1, 255, 1 << 40])
def test_wrong_version_of_the_client(version: int) -> None:
    refused(Session(Role.TERMINAL), encoded(frames.Hello(version, "token")), WrongVersion)


@pytest.mark.parametrize("version", [0, 2])
def test_wrong_version_of_the_terminal(version: int) -> None:
    refused(Session(Role.CLIENT), encoded(frames.Welcome(version, "t", 1, 1, 1)), WrongVersion)


def test_a_hello_of_the_future_with_more_fields_is_told_the_version() -> None:
    head = msgspec.msgpack.encode([1, 2, "token", "name", "something new", 7])
    refused(Session(Role.TERMINAL), raw(head), WrongVersion)


# -- limits, before anything is allocated -------------------------------------------------------------


def peak_of(session: Session, data: bytes, error: type[BusError] | None) -> int:
    tracemalloc.start()
    try:
        if error is None:
            assert session.receive_data(data) == []
        else:
            with pytest.raises(error):
                session.receive_data(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FOUR_GIB = 0xFFFF_FFFF


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("length", [FOUR_GIB, 1 << 31, DEFAULT_MAX_FRAME + 1])
def test_huge_length_is_refused_by_its_first_eight_bytes(role: Role, length: int) -> None:
    assert peak_of(opened(role), struct.pack("<II", length, 10), TooLarge) < 64 << 10


@pytest.mark.parametrize("head", [FOUR_GIB, MAX_HEAD + 1, 0])
def test_huge_or_empty_head_is_refused_by_its_first_eight_bytes(head: int) -> None:
    assert peak_of(opened(Role.TERMINAL), struct.pack("<II", 2 << 20, head), BadFrame) < 64 << 10


def test_head_longer_than_its_frame_is_refused() -> None:
    refused(opened(Role.TERMINAL), struct.pack("<II", 10, 11))


def test_allowed_length_allocates_only_what_has_come() -> None:
    assert peak_of(opened(Role.TERMINAL), struct.pack("<II", DEFAULT_MAX_FRAME, 100), None) < 64 << 10


def test_strangers_may_send_little_before_hello() -> None:
    refused(Session(Role.TERMINAL), struct.pack("<II", MAX_FRAME_BEFORE_HELLO + 1, 10), TooLarge)
    assert Session(Role.TERMINAL).receive_data(struct.pack("<II", MAX_FRAME_BEFORE_HELLO, 10)) == []


def test_a_session_may_allow_less() -> None:
    refused(opened(Role.TERMINAL, max_frame=1000), struct.pack("<II", 1001, 10), TooLarge)


def test_frame_of_exactly_the_limit_is_taken() -> None:
    frame = frames.Publish(1, "t", b"p", 1)
    head = len(encoded(frame)) - 8
    session = opened(Role.TERMINAL, max_frame=5000)
    assert received(session, [encoded(frame, bytes(5000 - head))]) == [(frame, bytes(5000 - head))]


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\x10\x00\x00\x00",  # an array of 268 million
        b"\xdf\x10\x00\x00\x00",  # a map as large
        b"\xc6\x7f\xff\xff\xff",  # 2 GiB of bytes
        b"\xdb\x7f\xff\xff\xff",  # 2 GiB of text
        b"\xc9\x7f\xff\xff\xff\x01",  # an extension as large
        b"\x91" * 20_000,  # twenty thousand arrays inside each other
    ],
    ids=["array", "map", "bytes", "text", "extension", "nesting"],
)
def test_lengths_inside_a_head_allocate_nothing(body: bytes) -> None:
    call = b"\x94\x08\x01\xa1x\x81\xa1a" + body  # Call(1, "x", {"a": …
    assert peak_of(opened(Role.TERMINAL), raw(call), BadFrame) < 1 << 20


@pytest.mark.parametrize(
    "frame",
    [
        frames.Publish(-1, "t", b"p", 1),
        frames.Publish(1, "t" * 1025, b"p", 1),
        frames.Publish(1, "t", b"", 1),
        frames.Publish(1, "t", b"p" * 65, 1),
        frames.Publish(1, "t", b"p", 0),
        frames.Publish(1, "t", b"p", BIG + 1),
        frames.Subscribe(1, 1, "t", None, 0),
        frames.Subscribe(1, 1, "t", None, 1_000_001),
        frames.Subscribe(1, -1, "t"),
        frames.Subscribe(1, 1, "t", None, 1, -1),
        frames.Settle(1, 1, [frames.Settlement(1, [(-1, 1)])]),
        frames.Settle(1, 1, [frames.Settlement(1, [(0, 1 << 63)])]),
        frames.Renew(1, "t" * 8193),
    ],
    ids=repr,
)
def test_fields_out_of_bounds_are_bad_frames(frame: Frame) -> None:
    refused(opened(Role.TERMINAL), encoded(frame))


def test_a_token_that_is_too_long_is_a_bad_frame() -> None:
    refused(Session(Role.TERMINAL), encoded(frames.Hello(1, "t" * 8193)))


# -- strangers ----------------------------------------------------------------------------------------

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS client hello
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    bytes(8),
    b"\xff" * 64,
]


def read_in_place(session: Session, data: bytes, dice: random.Random) -> list[tuple[Frame, bytes]]:
    """As a transport does it that writes into the room it is given."""
    events: list[tuple[Frame, bytes]] = []
    at = 0
    while at < len(data):
        room = session.room()
        assert session.filling == (room is not None)
        count = dice.randrange(1, (len(room) if room is not None else 5_000) + 1)
        some = data[at : at + count]
        at += len(some)
        whole: bytes | bytearray | None = some
        if room is not None:
            room[: len(some)] = some
            whole = session.filled(len(some))
        if whole is not None:
            events += [(frame, bytes(tail)) for frame, tail in session.receive_data(whole)]
    return events


@given(st.lists(st.sampled_from([0, 10, LARGE - 1, LARGE, 100_000]), max_size=6), st.integers(0, 1 << 30))
def test_a_large_frame_is_read_to_where_it_stays(tails: list[int], seed: int) -> None:
    dice = random.Random(seed)
    sent = [
        (frames.Publish(n, "orders", b"p" * 16, n + 1), dice.randbytes(size)) for n, size in enumerate(tails)
    ]
    data = b"".join(encoded(frame, tail) for frame, tail in sent)
    session = opened(Role.TERMINAL)
    assert read_in_place(session, data, dice) == sent
    assert not session.filling
    assert session.room() is None


def test_what_is_left_of_a_large_frame_goes_with_the_connection() -> None:
    session = opened(Role.TERMINAL)
    session.receive_data(struct.pack("<II", LARGE, 10))
    assert session.room() is not None
    session.close()
    assert not session.filling
    assert session.room() is None


@pytest.mark.parametrize("data", GARBAGE, ids=["http", "tls", "ssh", "redis", "zeros", "ones"])
@pytest.mark.parametrize("role", Role)
def test_garbage_before_hello_is_refused(data: bytes, role: Role) -> None:
    with pytest.raises((BadFrame, TooLarge)):
        Session(role).receive_data(data)


def outcome(session: Session, chunks: Iterable[bytes]) -> tuple[list[tuple[Frame, bytes]], str]:
    """The frames that came out, and the code of the error that ended it. Any other exception escapes."""
    events: list[tuple[Frame, bytes]] = []
    try:
        for chunk in chunks:
            events += [(frame, bytes(tail)) for frame, tail in session.receive_data(chunk)]
    except (BadFrame, TooLarge, WrongVersion) as error:
        assert session.state is State.CLOSED
        return events, error.code
    return events, ""


@BY_ROLE
def test_every_truncation_is_silent_and_gives_a_prefix(
    role: Role, transcript: list[tuple[Frame, bytes]]
) -> None:
    sent = b"".join(encoded(frame, tail) for frame, tail in transcript)
    for cut in range(0, len(sent), 7):
        events, code = outcome(Session(role), [sent[:cut]])
        assert code == ""
        assert events == transcript[: len(events)]
        assert len(events) < len(transcript)


@given(st.sampled_from(Role), st.booleans(), st.binary(max_size=400), st.integers(0, 1 << 30))
@settings(max_examples=3 * settings().max_examples)
def test_random_bytes_end_in_a_coded_error(role: Role, open: bool, data: bytes, seed: int) -> None:
    outcome(opened(role) if open else Session(role), chunked(data, seed))


@given(st.sampled_from(Role), st.binary(min_size=1, max_size=200), st.binary(max_size=50))
@settings(max_examples=3 * settings().max_examples)
def test_random_heads_end_in_a_coded_error(role: Role, head: bytes, tail: bytes) -> None:
    outcome(opened(role), [raw(head, tail)])


@given(
    st.sampled_from(Role),
    st.integers(0, 50),
    st.lists(st.binary(max_size=9) | _json.map(msgspec.msgpack.encode), max_size=9),
)
@settings(max_examples=3 * settings().max_examples)
@example(Role.TERMINAL, 8, [b"\x01", b"\xa1x", b"\x81\xa1a\x81\x80\x01"])  # a map as a key
@example(Role.TERMINAL, 8, [b"\x01", b"\xa1x", b"\x81\xa1a\xd7\xff" + b"\xff" * 8])  # a wild timestamp
@example(Role.TERMINAL, 8, [b"\x01", b"\xa1\xff", b"\x80"])  # text that isn't UTF-8
def test_random_fields_of_known_frames_end_in_a_coded_error(
    role: Role, tag: int, fields: list[bytes]
) -> None:
    head = bytes([0x90 | len(fields) + 1, tag]) + b"".join(fields)
    outcome(opened(role), [raw(head)])


@st.composite
def mutated(draw: st.DrawFn, transcript: list[tuple[Frame, bytes]]) -> bytes:
    data = bytearray(b"".join(encoded(frame, tail) for frame, tail in transcript))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 4)):
            case 0:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at] = draw(st.integers(0, 255))
            case 2:
                del data[at : at + draw(st.integers(1, 20))]
            case 3:
                data[at:at] = draw(st.binary(min_size=1, max_size=20))
            case _:
                other = draw(st.integers(0, len(data) - 1))
                data[at:at] = data[other : other + draw(st.integers(1, 60))]
        if not data:
            break
    return bytes(data)


@given(mutated(ASKED), st.integers(0, 1 << 30))
@settings(max_examples=3 * settings().max_examples)
def test_mutated_requests_end_in_a_coded_error(data: bytes, seed: int) -> None:
    whole, code = outcome(Session(Role.TERMINAL), bytewise(data))
    chunks, chunks_code = outcome(Session(Role.TERMINAL), chunked(data, seed))
    # The chunks change nothing but how much of what came before the error was seen.
    assert code == chunks_code
    assert chunks == whole[: len(chunks)]


@given(mutated(ANSWERED), st.integers(0, 1 << 30))
@settings(max_examples=3 * settings().max_examples)
def test_mutated_answers_end_in_a_coded_error(data: bytes, seed: int) -> None:
    whole, code = outcome(Session(Role.CLIENT), bytewise(data))
    chunks, chunks_code = outcome(Session(Role.CLIENT), chunked(data, seed))
    assert code == chunks_code
    assert chunks == whole[: len(chunks)]


@pytest.mark.parametrize("value", [10**30, -(10**30), "\ud800"], ids=["large", "negative", "half a pair"])
def test_what_no_frame_can_have_is_refused(value: Any) -> None:
    """Numbers come from JSON, and texts from forms."""
    with pytest.raises(BadRequest, match="can't be sent"):
        Session.send(frames.Call(1, "rule.test", {"match": value}))
