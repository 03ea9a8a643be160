import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log import record
from landbridge.core.log.batch import Batch, Origin, build
from landbridge.errors import BadFrame

AUDIENCE = st.none() | st.frozensets(st.text(max_size=5), max_size=3)


def batch(audience: frozenset[str] | None = None) -> Batch:
    found = Batch.decode(build([b"a", b"bc"], id=bytes(16), time=1))
    found.audience = audience
    return found


@given(AUDIENCE)
def test_record_is_read_back_with_its_audience(audience):
    found = record.unwrap(record.wrap(batch(audience)))
    assert found.audience == audience
    assert bytes(found.encode()) == bytes(batch().encode())


def test_record_is_read_back_with_its_origin():
    sent = batch()
    sent.origin = Origin("ter_a", 5, [(3, 5)], ["ter_a", "ter_b"], 9)
    assert record.unwrap(record.wrap(sent)).origin == sent.origin


def test_record_without_an_audience_is_the_batch_itself():
    assert bytes(record.wrap(batch())) == bytes(batch().encode())


@given(AUDIENCE, st.data())
def test_broken_record_is_a_bad_frame_or_a_batch(audience, data):
    whole = bytearray(record.wrap(batch(audience)))
    with pytest.raises(BadFrame):
        record.unwrap(bytes(whole)[: data.draw(st.integers(0, len(whole) - 1))])
    for at in data.draw(st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=3)):
        whole[at // 8] ^= 1 << at % 8
    try:
        record.unwrap(bytes(whole))
    except BadFrame:
        pass
