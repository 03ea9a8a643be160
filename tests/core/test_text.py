from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.text import mask, printable, printable_block, redact


@given(st.text())
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in printable(text))
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in printable_block(text) if c not in "\n\t")


def test_escapes() -> None:
    assert printable("a\x1b[31m\n\u202e") == "a\\x1b[31m\\n\\u202e"
    assert printable_block("a\n\tb\r") == "a\n\tb\\r"


def test_tokens_are_not_shown() -> None:
    token = "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJsYW5kYnJpZGdlIn0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
    assert redact(f"refused {token} twice") == "refused [token] twice"
    assert mask(token) == "…b2tlbg"
    assert mask("short") == "…"
