"""Text from strangers, made safe to show: a message's key or an error's detail must not steer the terminal of
whoever looks at it, and a token must not end up in a log."""

from __future__ import annotations

import re

#: Control characters of ASCII and Latin-1, line and paragraph separators, and those that turn the direction.
_CODES = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CODES}
_ESCAPES |= {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_ESCAPES_OF_BLOCKS = {code: escape for code, escape in _ESCAPES.items() if code not in (0x09, 0x0A)}

#: A JSON web token: three parts, of which the first is the encoding of '{"…'. Or a credential.
_TOKEN = re.compile(r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+|lb[a-z]{2}1_[a-z2-7]{16,}")


def printable(text: str) -> str:
    """On one line, with control characters as escapes."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_block(text: str) -> str:
    """As printable, but lines and tabs stay."""
    return text if text.isprintable() else text.translate(_ESCAPES_OF_BLOCKS)


def redact(text: str) -> str:
    """Without the tokens that may be in it."""
    return _TOKEN.sub("[token]", text) if "eyJ" in text or "1_" in text else text


def mask(token: str) -> str:
    """Enough of a token to tell it from another. Its end is part of the signature, and useless alone."""
    return f"…{token[-6:]}" if len(token) > 24 else "…"
