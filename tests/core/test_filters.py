import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.delivery.filters import Match, filter_of, sole_key
from landbridge.core.log.batch import Batch, build, encode_headers

WORD = st.text(alphabet="ab", max_size=3)
VALUE = WORD | WORD.map(str.encode) | st.integers(-2, 2)
GLOB = st.text(alphabet="ab*?[]-!1", max_size=4)
HEADER = st.sampled_from("xy")
MESSAGE = st.tuples(st.binary(max_size=3) | WORD.map(str.encode), st.dictionaries(HEADER, VALUE))
MATCH = st.builds(Match, key=st.none() | GLOB, headers=st.dictionaries(HEADER, GLOB, max_size=2))


def batch_of(messages) -> Batch:
    keys, headers = zip(*messages, strict=True)
    encoded = list(map(encode_headers, headers))
    return Batch.decode(build([b""] * len(keys), id=bytes(16), time=0, keys=keys, headers=encoded))


def text(value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def is_for(match, key, headers) -> bool:
    """The oracle: one message, straight from the promise."""
    if match.key is not None and not fnmatch.fnmatchcase(text(key), match.key):
        return False
    return all(n in headers and fnmatch.fnmatchcase(text(headers[n]), p) for n, p in match.headers.items())


def chosen(choose, batch) -> list[bool]:
    """None is short for all of them."""
    found = choose(batch)
    return [True] * len(batch) if found is None else list(found)


@given(MATCH, st.lists(MESSAGE, min_size=1, max_size=5), st.data())
def test_filter_chooses_message_by_message(match, messages, data):
    choose, batch = filter_of(match), batch_of(messages)
    wanted = [is_for(match, key, headers) for key, headers in messages]
    if choose is None:
        assert all(wanted)
        return
    assert chosen(choose, batch) == wanted
    lo = data.draw(st.integers(0, len(messages) - 1))
    assert chosen(choose, batch.slice(lo, len(messages))) == wanted[lo:]
    key = sole_key(match)
    if key is not None:  # whatever has another one is left out
        assert not any(is_it and has != key for is_it, (has, _) in zip(wanted, messages, strict=True))


@pytest.mark.parametrize("match", [None, Match()])
def test_no_conditions_are_no_filter(match):
    assert filter_of(match) is None


def test_header_of_bytes_is_matched_by_its_text():
    choose = filter_of(Match(headers={"x": "a*"}))
    assert choose is not None
    batch = batch_of([(b"", {"x": value}) for value in (b"abc", "abc", b"b")])
    assert choose(batch) == [True, True, False]


def test_empty_key_pattern_is_for_messages_without_a_key():
    choose = filter_of(Match(key=""))
    assert choose is not None
    assert choose(batch_of([(b"", {}), (b"a", {})])) == [True, False]
