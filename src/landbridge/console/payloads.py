"""How the payload and the headers of a message are shown: JSON indented and coloured, text, or bytes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from landbridge.core.log.batch import HeaderValue
from landbridge.core.rules.content import is_deeper
from landbridge.core.sizes import show_size
from landbridge.core.text import printable, printable_block

#: Bytes of a payload that a page shows, characters of an excerpt, bytes of a payload that is no text.
MOST_SHOWN, EXCERPT, MOST_HEX = 128 << 10, 160, 512
#: JSON that is nested deeper, or has more characters with its line breaks, is shown as text. A line of deep
#: JSON begins with its depth in blanks: a payload of 128 KiB can make a page of 100 MB.
DEEPEST, MOST_INDENTED = 32, 512 << 10
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)


class PayloadShown(NamedTuple):
    """A payload as a page shows it."""

    #: "JSON", "text" or "bytes".
    form: str
    html: Markup
    #: What is left out; empty: nothing.
    cut: str = ""


def shown(payload: bytes) -> PayloadShown:
    """A payload, in the form that says most."""
    part = payload[:MOST_SHOWN]
    cut = f"the first {show_size(MOST_SHOWN)} of {show_size(len(payload))}" if part != payload else ""
    if not cut and (pretty := _indented(payload)) is not None:
        return PayloadShown("JSON", coloured(pretty))
    try:
        text = part.decode(errors="strict" if not cut else "ignore")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return PayloadShown("text", Markup('<pre tabindex="0">{}</pre>').format(printable_block(text)), cut)
    cut = f"the first {MOST_HEX} of {show_size(len(payload))}" if len(payload) > MOST_HEX else ""
    return PayloadShown("bytes", Markup('<pre tabindex="0">{}</pre>').format(_hex(payload[:MOST_HEX])), cut)


def excerpt(payload: bytes) -> str:
    """The beginning of a payload, on one line."""
    part = payload[: 4 * EXCERPT].decode(errors="replace")
    text = printable(" ".join(part.split()))
    return text[:EXCERPT] + ("…" if len(text) > EXCERPT or len(payload) > 4 * EXCERPT else "")


def header_text(value: HeaderValue) -> str:
    """The value of a header as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def header_rows(headers: Mapping[str, HeaderValue]) -> list[tuple[str, str, str]]:
    """Name, value and kind of each header."""
    return [(name, header_text(value), type(value).__name__) for name, value in headers.items()]


def _indented(payload: bytes) -> str | None:
    """JSON with line breaks, its numbers and its order as they are; None if it is no JSON."""
    if not payload.strip():
        return None
    try:
        if is_deeper(msgspec.json.decode(payload), DEEPEST):
            return None
        found = msgspec.json.format(payload, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if len(found) <= MOST_INDENTED else None


def coloured(text: str) -> Markup:
    """JSON with a class for each kind of value."""
    # Tens of thousands of tokens, while others wait for the loop: escaped by hand, each once.
    parts = ['<pre class="json" tabindex="0">']
    at = 0
    for found in _TOKEN.finditer(text):
        parts.append(html.escape(text[at : found.start()]))
        kind = "k" if found["colon"] else "s" if found["string"] else "n" if found["number"] else "w"
        token = found["string"] or found["number"] or found["word"]
        parts.append(f'<span class="{kind}">{html.escape(printable_block(token))}</span>')
        parts.append(found["colon"] or "")
        at = found.end()
    parts.append(f"{html.escape(text[at:])}</pre>")
    return Markup("".join(parts))


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
