"""What an entry of the audit log tells: all that has changed, nothing that is secret, within bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core import audit
from landbridge.core.audit import HIDDEN, LARGEST_SIDE, LARGEST_VALUE, SECRET, AuditEntry

NAMES = st.sampled_from(
    ["note", "scopes", "retention", "secret", "token", "credential", "Secrets", "ends_at"]
)
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["s3cr3t", "x" * 5_000, "\N{SNOWMAN}" * 3_000]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
SIDES = st.one_of(st.none(), st.dictionaries(NAMES, VALUES, max_size=8))


@given(SIDES, SIDES)
def test_the_fields_that_differ_are_told_and_no_others(before: Any, after: Any) -> None:
    from_, to, cut = audit.told(before, after)
    if before is None or after is None:
        assert set(from_ or ()) == set(before or ())
        assert set(to or ()) == set(after or ())
    else:
        names = {name for name in {**before, **after} if before.get(name) != after.get(name)}
        assert set(from_) == set(to) == names
    for side, told in ((before, from_), (after, to)):
        for name, value in (told or {}).items():
            original = (side or {}).get(name)
            if name.lower() in SECRET and original not in (None, "", [], {}):
                assert value == HIDDEN
            elif name not in cut and not _has_secret(original):
                assert value == original
    raw = audit.encode(
        AuditEntry(
            time=1, operation="topic.update", what="topic", name="t", who="ana", before=from_, after=to
        )
    )
    # Each side within its bound, apart from the names of its fields and what says that a value was cut.
    assert len(raw) <= 2 * LARGEST_SIDE + 1_000
    assert audit.decode(raw).before == from_


@given(SIDES)
def test_what_is_named_secret_is_nowhere(side: Any) -> None:
    hidden = _with_secrets(side)
    raw = msgspec.json.encode(audit.told(hidden, None)[0])
    assert b"THE-SECRET" not in raw


def test_large_values_are_cut_and_named() -> None:
    _, to, cut = audit.told(None, {"note": "x" * 10_000, "small": 1, "list": list(range(5_000))})
    assert cut == ("note", "list")
    assert to["small"] == 1
    assert to["note"].startswith("xxx")
    assert to["note"].endswith("…")
    assert len(to["list"]) <= LARGEST_VALUE


def test_tokens_in_texts_are_taken_out() -> None:
    token = "lbsc1_" + "a" * 40
    _, to, _ = audit.told(None, {"note": f"use {token} now"})
    assert token not in to["note"]


def _has_secret(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name.lower() in SECRET or _has_secret(each) for name, each in value.items())
    return isinstance(value, list) and any(map(_has_secret, value))


def _with_secrets(value: Any) -> Any:
    """The same with a secret wherever a name says so."""
    if isinstance(value, dict):
        return {
            name: "THE-SECRET" if name.lower() in SECRET else _with_secrets(each)
            for name, each in value.items()
        }
    return [_with_secrets(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["X-Api-Key", "Cookie", "apikey", "Proxy-Authorization", "private_key"])
def test_headers_that_carry_secrets_are_hidden(name: str) -> None:
    _, to, _ = audit.told(None, {"headers": {name: "s3cret", "content-type": "text/plain"}})
    assert to == {"headers": {name: HIDDEN, "content-type": "text/plain"}}
