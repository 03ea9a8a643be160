"""How many segments a text takes (3GPP TS 23.038): that is what providers charge for.

A text of the GSM alphabet has 160 septets in one segment, or 153 in each of several; any other text is UCS-2,
with 70 or 67 units of 16 bits. A character of two septets or two units is never cut in two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§"
    "¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
#: Those that take two septets.
_EXTENDED = frozenset("\f^{}\\[~]|€")
_GSM, _UCS2 = (160, 153), (70, 67)


class SmsSize(NamedTuple):
    """What a text takes."""

    alphabet: Literal["gsm-7", "ucs-2"]
    #: Septets, or units of 16 bits.
    units: int
    segments: int


def size_of(text: str) -> SmsSize:
    """What a text takes."""
    if all(each in _BASIC or each in _EXTENDED for each in text):
        widths = [2 if each in _EXTENDED else 1 for each in text]
        return SmsSize("gsm-7", sum(widths), _segments(widths, *_GSM))
    widths = [2 if ord(each) > 0xFFFF else 1 for each in text]
    return SmsSize("ucs-2", sum(widths), _segments(widths, *_UCS2))


def _segments(widths: Iterable[int], alone: int, each: int) -> int:
    widths = list(widths)
    if sum(widths) <= alone:
        return 1
    count, used = 1, 0
    for width in widths:
        if used + width > each:
            count, used = count + 1, 0
        used += width
    return count
