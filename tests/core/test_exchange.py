"""The exchange against the naive oracle of tests/events.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.events.exchange import Exchange, decode_state, encode_state
from tests.events import oracle

IDS = st.sampled_from([b"1", b"2", b"3", b"4", b"x"])
EVENTS = st.one_of(
    st.builds(lambda kind, a, b: b"|%s|%s|%s" % (kind, a, b), st.sampled_from([b"F", b"U", b"P"]), IDS, IDS),
    st.builds(lambda a: b"|S|" + a, IDS),
    st.just(b"|B"),
)


def numbered(events, first=1):
    return [b"%d%s" % (number, event) for number, event in enumerate(events, first)]


def text(lines):
    return b"".join(line + b"\n" for line in lines)


def exchange_with(*clients):
    exchange = Exchange()
    for client in clients:
        exchange.join(client)
    return exchange


def told(exchange, *lines):
    """client → lines, for those that are told something."""
    notifications = exchange.dispatch(lines)
    found = {client: notifications.of(client) for client in exchange.present}
    return {client: got.split(b"\n")[:-1] for client, got in found.items() if got}


@given(st.lists(st.lists(EVENTS, max_size=15), max_size=6), st.sets(IDS))
def test_every_client_gets_what_the_oracle_gives_it(batches, clients):
    exchange = exchange_with(*clients)
    got = dict.fromkeys(clients, b"")
    everything: list[bytes] = []
    for events in batches:
        lines = numbered(events, len(everything) + 1)
        everything += lines
        notifications = exchange.dispatch(lines)
        assert not notifications.malformed
        rows = list(notifications.rows(sorted(clients)))
        for client in clients:
            got[client] += notifications.of(client)
            assert [line for name, line in rows if name == client] == notifications.of(client).split(b"\n")[
                :-1
            ]
    assert got == {client: text(lines) for client, lines in oracle(everything, clients).items()}


@given(st.data())
def test_coming_and_going_changes_only_what_is_missed(data):
    """A client that is away misses lines, and nothing else: who follows whom goes on without it."""
    exchange = Exchange()
    everything: list[bytes] = []
    expected: dict[bytes, bytes] = {}
    got: dict[bytes, bytes] = {}
    present: set[bytes] = set()
    for _ in range(data.draw(st.integers(1, 8))):
        for client in data.draw(st.sets(IDS)):
            (exchange.leave if client in present else exchange.join)(client)
            present ^= {client}
        before = {c: len(lines) for c, lines in oracle(everything, [b"1", b"2", b"3", b"4", b"x"]).items()}
        lines = numbered(data.draw(st.lists(EVENTS, max_size=8)), len(everything) + 1)
        everything += lines
        notifications = exchange.dispatch(lines)
        assert notifications.apart.keys() <= present
        for client, whole in oracle(everything, before).items():
            if client in present:
                got[client] = got.get(client, b"") + notifications.of(client)
                expected[client] = expected.get(client, b"") + text(whole[before[client] :])
        if data.draw(st.booleans()):
            restored = exchange_with(*present)
            restored.restore(decode_state(encode_state(exchange.save())))
            exchange = restored
    assert got == expected


def test_follow_is_told_to_the_followed_once():
    exchange = exchange_with(b"1", b"2")
    assert told(exchange, b"1|F|1|2", b"2|F|1|2") == {b"2": [b"1|F|1|2"]}
    assert told(exchange, b"3|U|1|2", b"4|F|1|2") == {b"2": [b"4|F|1|2"]}


def test_follow_of_an_absent_client_is_kept():
    exchange = exchange_with(b"1")
    assert told(exchange, b"1|F|1|9", b"2|S|9") == {b"1": [b"2|S|9"]}
    assert exchange.followers(b"9") == {b"1"}


def test_an_absent_follower_is_told_once_it_is_there():
    exchange = Exchange()
    assert told(exchange, b"1|F|1|9", b"2|S|9") == {}
    exchange.join(b"1")
    assert told(exchange, b"3|S|9") == {b"1": [b"3|S|9"]}


def test_private_message_and_broadcast_keep_their_order():
    exchange = exchange_with(b"1", b"2")
    lines = [b"1|B", b"2|P|9|1", b"3|B", b"4|B", b"5|P|9|1", b"6|P|9|1", b"7|B"]
    assert told(exchange, *lines) == {b"1": lines, b"2": [b"1|B", b"3|B", b"4|B", b"7|B"]}


def test_broadcasts_are_put_together_once_for_everybody():
    exchange = exchange_with(*(b"%d" % n for n in range(1000)))
    notifications = exchange.dispatch([b"1|B", b"2|P|1|7", b"3|B|x|y"])
    assert notifications.everyone == b"1|B\n3|B|x|y\n"
    assert notifications.apart == {b"7": b"1|B\n2|P|1|7\n3|B|x|y\n"}


@pytest.mark.parametrize(
    "line",
    [b"1", b"1|", b"1|X|1|2", b"1|F|1", b"1|F||2", b"1|F|1|", b"1|U|1", b"1|P|1", b"1|S", b"1|S|", b"1|f|1|2",
     b"1|F|1|2|3", b"1|S|1|2|3", b"1|B|||", b"1||1|2", b""],
)  # fmt: skip
def test_nonsense_is_told_to_nobody_and_reported(line):
    exchange = exchange_with(b"1", b"2")
    exchange.dispatch([b"0|F|2|1"])
    notifications = exchange.dispatch([b"7|B", line, b"8|B"])
    assert notifications == (b"7|B\n8|B\n", {}, [line])


@pytest.mark.parametrize("line", [b"1|B", b"1|B|", b"1|B||", b"1|S|2", b"1|S|2|", b"1|S|2|5"])
def test_absent_and_empty_fields_are_the_same(line):
    exchange = exchange_with(b"1")
    exchange.dispatch([b"0|F|1|2"])
    assert told(exchange, line) == {b"1": [line]}


def test_leaving_forgets_nothing_but_the_presence():
    exchange = exchange_with(b"1", b"2")
    exchange.dispatch([b"1|F|1|2"])
    exchange.leave(b"1")
    exchange.leave(b"1")
    assert told(exchange, b"2|S|2") == {}
    assert exchange.followers(b"2") == {b"1"}
