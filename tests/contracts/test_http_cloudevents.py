"""The codec of CloudEvents beside PyPI's ``cloudevents``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.gateways.http import cloudevents as ours

conversion = pytest.importorskip("cloudevents.v1.conversion")
oracle = pytest.importorskip("cloudevents.v1.http")

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
    datetime.isoformat
)
# The oracle makes up a time where there is none.
attributes = st.fixed_dictionaries(
    {"id": words, "source": words, "type": words, "time": moments}, optional={"subject": words}
)
values = st.recursive(st.none() | st.booleans() | st.integers(-1000, 1000) | words, st.lists, max_leaves=5)


def names(options: Any) -> dict[str, Any]:
    return {k[3:]: v for k, v in options["headers"].items() if k.startswith("ce-") and k != "ce-specversion"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the oracle's own
@given(attributes, values)
def test_structured_events_mean_the_same(said: dict[str, str], data: Any) -> None:
    headers, body = oracle.to_structured(
        oracle.CloudEvent({**said, "datacontenttype": "application/json"}, data)
    )
    assert headers["content-type"] == ours.STRUCTURED
    [(payload, options)] = ours.from_structured(body)
    assert names(options) == said
    assert (json.loads(payload) if payload else None) == data


@given(attributes, st.binary(max_size=50))
def test_what_goes_out_in_binary_form_comes_back(said: dict[str, str], data: bytes) -> None:
    raw = dict(ours.to_headers({**said, "specversion": "1.0"}))
    payload, options = ours.from_headers(data, raw)
    assert (payload, names(options)) == (data, said)
    assert all(32 < byte < 127 for value in raw.values() for byte in value)
