"""What the benchmarks compare the latency with: the bare broker, and the small client of Redis Streams."""

from __future__ import annotations

import pytest

from bench import floor, streams


def test_floor_acks_and_delivers_what_was_sent_and_has_it_on_disk(tmp_path):
    received, acked = floor.measure(tmp_path / "floor", 50, 100, 500.0)
    sent = [at for at, _ in acked]
    assert len(sent) == 50
    assert sent == sorted(sent)
    assert [at for at, _ in received] == sent
    assert all(seconds > 0 for _, seconds in received + acked)

    data, stored = (tmp_path / "floor").read_bytes(), []
    assert len(data) == floor.FILE_BYTES
    for at in range(0, 50 * 104, 104):
        assert floor.LENGTH.unpack_from(data, at) == (100,)
        stored.append(int.from_bytes(data[at + 4 : at + 12], "little"))
    assert stored == sent
    assert not any(data[50 * 104 :])


def test_redis_streams_ack_and_deliver_what_was_sent(tmp_path):
    program = streams.find_server()
    if program is None:
        pytest.skip("no valkey-server or redis-server is here")
    received, acked = streams.measure(program, tmp_path, 50, 100, 500.0)
    assert len(acked) == 50
    assert [at for at, _ in received] == [at for at, _ in acked]


def test_answers_of_redis_are_parsed_when_they_are_complete():
    answer = b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\np\r\n$4\r\n\r\n\r\n\r\n"
    value = [[b"s", [[b"1-0", [b"p", b"\r\n\r\n"]]]]]
    assert streams.parse(answer) == (value, len(answer))
    assert all(streams.parse(answer[:size]) is None for size in range(len(answer)))
    assert streams.parse(b"$-1\r\n:7\r\n") == (None, 5)
    assert streams.parse(b"$-1\r\n:7\r\n", 5) == (b"7", 9)
    with pytest.raises(RuntimeError, match="no such key"):
        streams.parse(b"-ERR no such key\r\n")
