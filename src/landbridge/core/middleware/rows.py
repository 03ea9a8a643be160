"""The messages of a batch on their way through the stages of a chain. Columns are read when a stage asks
for them, payloads are decoded once for all stages of a slice, and a batch in which nothing was changed
goes on as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from landbridge.core.log.batch import Batch, Column, HeaderValue, build, decode_headers, encode_headers
from landbridge.core.text import printable
from landbridge.errors import InvalidMessage

#: Characters of the reason in a refusal, and of the field that it names.
LONGEST_REASON, LONGEST_FIELD = 300, 200

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class BatchRows:
    """A batch that stages may change."""

    def __init__(
        self, batch: Batch, claims: Mapping[str, str] | None = None, *, shares_values: bool = True
    ) -> None:
        """``shares_values``: several stages look at decoded payloads."""
        self.batch = batch
        self.shares_values = shares_values
        #: What is known of whoever publishes it.
        self.claims: Mapping[str, str] = claims or {}
        self._keys: list[bytes] | None = None
        self._payloads: list[bytes] | None = None
        self._headers: list[bytes] | None = None
        self._is_changed = False
        #: The decoded payloads of the slice that is worked on, and which of them were changed.
        self._slice = (0, 0)
        self._values: list[Any] = []
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads as they are now."""
        if self._payloads is None:
            self._payloads = self.batch.payloads()
        return self._payloads

    def slices(self, messages: int, size: int) -> Iterator[tuple[int, int]]:
        """Runs of at most ``messages`` messages and about ``size`` bytes, so that a slice takes a bounded
        time."""
        count = len(self)
        mean = self.batch.payload_bytes() // count + 1
        if mean * min(messages, count) <= size and self.batch.payload_bytes() <= 8 * size:
            step = messages
            yield from ((lo, min(lo + step, count)) for lo in range(0, count, step))
            return
        lo = held = 0
        for at, payload in enumerate(self.payloads):
            if at > lo and (held + len(payload) > size or at - lo >= messages):
                yield lo, at
                lo, held = at, 0
            held += len(payload)
        yield lo, count

    # -- payloads ----------------------------------------------------------------------------------

    def values(self, lo: int, hi: int) -> list[Any]:
        """The payloads from ``lo`` to ``hi`` decoded as JSON. InvalidMessage where one is none."""
        if self._slice != (lo, hi):
            payloads = self.payloads
            try:
                self._values = list(map(_decode, payloads[lo:hi] if hi - lo < len(payloads) else payloads))
            except _UNREADABLE:
                for at in range(lo, hi):
                    try:
                        _decode(payloads[at])
                    except _UNREADABLE as error:
                        self._refuse_unreadable(at, error)
                raise
            self._slice = (lo, hi)
        return self._values

    def all_fit(self, lo: int, hi: int, fits: Callable[[Any], bool]) -> bool:
        """Do all payloads from ``lo`` to ``hi``, decoded as JSON, pass this test? InvalidMessage where one is
        no JSON."""
        if self.shares_values or self._slice == (lo, hi):
            return all(map(fits, self.values(lo, hi)))
        payloads = self.payloads
        try:
            # One by one: what is kept in a list is looked through by the garbage collector.
            return all(map(fits, map(_decode, payloads[lo:hi] if hi - lo < len(payloads) else payloads)))
        except _UNREADABLE:
            return all(map(fits, self.values(lo, hi)))

    def value(self, at: int) -> Any:
        """One payload decoded as JSON. InvalidMessage where it is none."""
        lo, hi = self._slice
        if lo <= at < hi:
            return self._values[at - lo]
        try:
            return _decode(self.payloads[at])
        except _UNREADABLE as error:
            self._refuse_unreadable(at, error)

    def _refuse_unreadable(self, at: int, error: Exception) -> NoReturn:
        self.refuse(at, "", f"the payload is no JSON: {error}", hint="send JSON, in UTF-8")

    def payload_now(self, at: int) -> bytes:
        """One payload with what was changed of its decoded value."""
        return _encode(self.value(at)) if at in self._changed else self.payloads[at]

    def value_changed(self, at: int, value: Any) -> None:
        """A decoded payload of the slice was changed, or is another one now."""
        self._values[at - self._slice[0]] = value
        self._changed[at] = None

    def set_value(self, at: int, value: Any) -> None:
        """Make this value, as JSON, the payload."""
        lo, hi = self._slice
        if lo <= at < hi:
            self.value_changed(at, value)
        else:
            self.set_payload(at, _encode(value))

    def end_slice(self) -> None:
        """All stages have seen the slice: write down what they have changed of its payloads."""
        if self._changed:
            self._is_changed = True
            payloads, lo = self.payloads, self._slice[0]
            for at in self._changed:
                payloads[at] = _encode(self._values[at - lo])
            self._changed.clear()
        self._slice, self._values = (0, 0), []

    def set_payload(self, at: int, payload: bytes) -> None:
        """Replace a payload by bytes; whatever was decoded of it counts no longer."""
        self.payloads[at] = payload
        self._is_changed = True
        self._changed.pop(at, None)

    # -- headers -----------------------------------------------------------------------------------

    def may_have_header(self, *names: bytes) -> bool:
        """Can any message have one of these headers? A look at all at once."""
        if self._headers is not None:
            return True
        if not self.batch.has(Column.HEADERS):
            return False
        if not all(names):
            return True
        held = bytes(self.batch.span(Column.HEADERS)[1])
        return any(name in held for name in names)

    @property
    def raw_headers(self) -> list[bytes]:
        """The encoded headers, b"" where a message has none."""
        if self._headers is None:
            self._headers = self.batch.raw_headers() or [b""] * len(self)
        return self._headers

    def headers(self, at: int) -> dict[str, HeaderValue]:
        """The headers of a message as they are now."""
        raw = self.raw_headers[at]
        return decode_headers(raw) if raw else {}

    def set_headers(self, at: int, headers: Mapping[str, HeaderValue]) -> None:
        """Give a message these headers and no others."""
        self.raw_headers[at] = encode_headers(headers)
        self._is_changed = True

    def replace(
        self, payloads: list[bytes], headers: list[dict[str, HeaderValue]], keys: list[bytes]
    ) -> None:
        """Put others in the place of all messages. TypeError or ValueError for headers that can't be sent."""
        encoded = list(map(encode_headers, headers))
        for raw in encoded:
            if raw:
                decode_headers(raw)
        self._payloads, self._headers, self._keys = payloads, encoded, keys
        self._is_changed = True

    # -- ends --------------------------------------------------------------------------------------

    def refuse(self, at: int, field: str, reason: str, *, hint: str = "") -> NoReturn:
        """Refuse the batch because of this message."""
        reason = printable(reason)[:LONGEST_REASON]
        field = printable(field)[:LONGEST_FIELD]
        where = f", {field}" if field else ""
        raise InvalidMessage(f"message {at} of the batch{where}: {reason}", hint=hint, index=at, field=field)

    def to_batch(self) -> Batch:
        """The batch as it is now. It has its id, so that the ids of its messages stay."""
        batch = self.batch
        if not self._is_changed:
            return batch
        changed = Batch.decode(
            build(
                self.payloads,
                id=batch.id,
                time=batch.time,
                base=batch.begin,
                keys=batch.keys() if self._keys is None else self._keys,
                headers=self.raw_headers,
                ids=batch.ids(),
                times=batch.times(),
                priorities=batch.priorities(),
                deliver_at=batch.deliver_at(),
                expires_at=batch.expires_at(),
            )
        )
        changed.audience, changed.is_letter, changed.origin = batch.audience, batch.is_letter, batch.origin
        return changed
