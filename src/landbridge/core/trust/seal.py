"""Sealed frames: the terminals' half of crossing the internet. One frame carries one batch from its source to
its destination; whoever passes it on can neither read nor change it.

    clear     version, number of header boxes, day, size of a header box
    header    AES-GCM under the pair key, once for each key that the destination has:
              the inner header, its signature, the ticket, the box
    payload   AES-GCM under the content key; bound to the inner header and the source

The inner header is what the source signs, together with the payload's ciphertext: topic, seal_id,
destination, epoch, sequence, counter, and the caller's ``meta``. The ticket stands outside the signature, so
that a renewed one can take its place; the registry vouches for it. Source and destination travel outside
(hops need them) and are bound to everything.

The receiver first looks at the header (``look``), which needs no registry, then opens the payload with an
``Opener`` that has learned the content key from the registry's answer.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from landbridge.core.log.batch import Buffer
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import Identity, verify
from landbridge.core.trust.primitives import NONCE_SIZE, TAG_SIZE, decrypt, derive, encrypt, fields, wrap
from landbridge.core.trust.tickets import (
    KEY_SIZE,
    SEAL_ID_SIZE,
    Issue,
    Release,
    box_info,
    release_info,
)
from landbridge.errors import BadRequest, BadSeal, TicketExpired

#: A ticket is used for a fifth of its life, which is 60 s of 300: so even the last frame under it has four
#: minutes to arrive before anybody must renew.
USE = 5
#: Messages, and so frames, that are sealed under one ticket at most.
MAX_MESSAGES = 1 << 20
#: Bytes of a header box at most. Checked before anything is decrypted.
MAX_HEADER = 1 << 16
#: Content keys that an opener holds at most.
MAX_KEYS = 16_384

_VERSION = 1
_DATA, _CONTROL = "header", "control"
_CLEAR = struct.Struct(">BBII")  # version, number of boxes, day, size of a box
#: A terminal has two keys at most, while one replaces the other.
MAX_BOXES = 2
_DAY = 86_400 * SECOND


class _Inner(msgspec.Struct, frozen=True, array_like=True):
    """What the source signs, together with the payload."""

    topic: str
    seal_id: bytes
    destination: str
    epoch: int
    sequence: int
    counter: int
    meta: bytes


class _Outer(msgspec.Struct, frozen=True, array_like=True):
    """What is in a header box."""

    inner: bytes
    signature: bytes
    ticket: bytes
    box: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_inner = msgspec.msgpack.Decoder(_Inner).decode
_decode_outer = msgspec.msgpack.Decoder(_Outer).decode


class Header(_Inner, frozen=True, kw_only=True):
    """What a terminal knows of a frame for it before it can open it. The pair key proves that the source or
    this terminal itself wrote it; the signature is checked together with the payload."""

    source: str
    signature: bytes
    ticket: bytes
    box: bytes
    inner: bytes  #: the signed bytes themselves
    sign: bytes  #: Ed25519 public key of the source, of the same secure key that the header was sealed with
    start: int  #: where the payload begins in the frame


class _ContentCipher:
    """A content key at work. Its nonces are a secret salt xor the frame's number."""

    __slots__ = ("_cipher", "_salt")

    def __init__(self, cek: bytes) -> None:
        material = derive(cek, fields("content key"), KEY_SIZE + NONCE_SIZE)
        self._cipher = AESGCM(material[:KEY_SIZE])
        self._salt = int.from_bytes(material[KEY_SIZE:], "big")

    def _nonce(self, counter: int) -> bytes:
        return (self._salt ^ counter).to_bytes(NONCE_SIZE, "big")

    def encrypt(self, counter: int, plaintext: Buffer, aad: bytes) -> bytes:
        return self._cipher.encrypt(self._nonce(counter), plaintext, aad)

    def decrypt(self, counter: int, ciphertext: Buffer, aad: bytes) -> bytes:
        return self._cipher.decrypt(self._nonce(counter), ciphertext, aad)


def _payload_aad(inner: bytes, source: str) -> bytes:
    return fields("payload", inner, source)


def _digest(customer: str, source: str, destination: str, inner: bytes, ciphertext: Buffer) -> bytes:
    """What a frame's signature covers. The ciphertext comes last and needs no length: the rest has theirs."""
    digest = hashlib.sha256(fields("frame", customer, source, destination, inner))
    digest.update(ciphertext)
    return digest.digest()


# --- sending ------------------------------------------------------------------------------------------


class Sealer:
    """Seals frames of one topic under one ticket, with a content key of its own that is never stored: so no
    nonce can come twice, not even after a crash."""

    def __init__(self, identity: Identity, issue: Issue, now: int) -> None:
        cek = os.urandom(KEY_SIZE)
        info = box_info(identity.customer, issue.topic, issue.kv, issue.seal_id, identity.terminal)
        self._identity = identity
        self._cipher = _ContentCipher(cek)
        # next() is atomic: two threads never get the same number, and with it the same nonce.
        self._counters = itertools.count()
        self._box = wrap(cek, issue.public, info)
        self._ticket = issue.ticket
        self.topic = issue.topic
        self.seal_id = issue.seal_id
        #: Messages sealed so far.
        self.messages = 0
        # By our own clock: the registry's may differ, a span of time doesn't.
        use = (issue.expires_at - issue.issued_at) // USE
        self.usable_until = now + use
        self._due_at = now + use // 2

    def usable(self, now: int, messages: int = 1) -> bool:
        """May a frame of so many messages be sealed? One that is greater than the limit may, alone."""
        room = self.messages + messages <= MAX_MESSAGES or not self.messages
        return room and now < self.usable_until

    def due(self, now: int) -> bool:
        """Is it time to fetch the next ticket? Half of this one is used up."""
        return now >= self._due_at or self.messages >= MAX_MESSAGES // 2

    def seal(
        self,
        destination: str,
        destination_keys: Sequence[PublicKeys],
        *,
        now: int,
        epoch: int,
        sequence: int,
        meta: bytes,
        plaintext: Buffer | Sequence[Buffer],
        messages: int,
    ) -> bytes:
        """One frame. TicketExpired if the sealer is not ``usable``."""
        if not self.usable(now, messages):
            raise TicketExpired(
                f"a ticket that has sealed {self.messages} messages and was to be used no longer",
                hint="fetch the next ticket when due() says so",
            )
        counter = next(self._counters)
        if counter >= MAX_MESSAGES:
            raise TicketExpired(f"a ticket that has sealed {counter} frames", hint="fetch the next ticket")
        self.messages += messages
        if not isinstance(plaintext, bytes | bytearray | memoryview):
            plaintext = b"".join(plaintext)
        identity, source = self._identity, self._identity.terminal
        inner = _encode(_Inner(self.topic, self.seal_id, destination, epoch, sequence, counter, meta))
        ciphertext = self._cipher.encrypt(counter, plaintext, _payload_aad(inner, source))
        signature = identity.sign("frame", _digest(identity.customer, source, destination, inner, ciphertext))
        outer = _encode(_Outer(inner, signature, self._ticket, self._box))
        return _boxes(identity, _DATA, destination, destination_keys, outer, now, ciphertext)


# --- receiving ----------------------------------------------------------------------------------------


def look(identity: Identity, peer_keys: Sequence[PublicKeys], source: str, data: Buffer, now: int) -> Header:
    """The header of a frame for this terminal. ``peer_keys``: those of the source, from the directory.
    BadSeal if the frame is not from there, not for here, or was changed."""
    plaintext, keys, start = _open_boxes(identity, _DATA, source, peer_keys, data, now)
    # The pair key proves who wrote it, not that it makes sense.
    try:
        outer = _decode_outer(plaintext)
        inner = _decode_inner(outer.inner)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadSeal("a frame whose header doesn't decode") from None
    if inner.destination != identity.terminal:
        raise BadSeal("a frame that was signed for another terminal")
    if len(inner.seal_id) != SEAL_ID_SIZE or not 0 <= inner.counter < MAX_MESSAGES:
        raise BadSeal("a frame whose header makes no sense")
    return Header(
        *msgspec.structs.astuple(inner),
        source=source,
        signature=outer.signature,
        ticket=outer.ticket,
        box=outer.box,
        inner=outer.inner,
        sign=keys.sign,
        start=start,
    )


class _ContentKey(msgspec.Struct, frozen=True):
    cipher: _ContentCipher
    topic: str
    sender_keys: list[PublicKeys]
    expires_at: int  #: by our own clock


class Opener:
    """The content keys that this terminal was given, each until its ticket expires. In memory only."""

    def __init__(self, identity: Identity, max_keys: int = MAX_KEYS) -> None:
        self._identity = identity
        self._max_keys = max_keys
        #: (source, seal_id) → key, the one learned last at the end.
        self._keys: OrderedDict[tuple[str, bytes], _ContentKey] = OrderedDict()
        #: No key expires before this moment.
        self._expiry_from: float = math.inf

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, source: str, seal_id: bytes, now: int) -> bool:
        key = self._keys.get((source, seal_id))
        return key is not None and now < key.expires_at

    def learn(self, header: Header, release: Release, now: int) -> None:
        """Take the registry's answer for this header. BadSeal if it is about another seal, topic or
        sender."""
        if (release.sender, release.topic, release.seal_id) != (header.source, header.topic, header.seal_id):
            raise BadSeal("a frame whose ticket was issued to another terminal or for another topic")
        identity = self._identity
        info = release_info(identity.customer, release.topic, release.seal_id, identity.terminal)
        cek = identity.unwrap(release.wrapped, info)
        if len(cek) != KEY_SIZE:
            raise BadSeal("a content key of a wrong size")
        name = (release.sender, release.seal_id)
        expires_at = now + max(release.expires_at - release.released_at, 0)
        self._keys.pop(name, None)
        self._keys[name] = _ContentKey(_ContentCipher(cek), release.topic, release.sender_keys, expires_at)
        self._expiry_from = min(self._expiry_from, expires_at)
        while len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)

    def open(self, header: Header, data: Buffer, now: int) -> bytes:
        """The payload. TicketExpired if the key for it isn't there (``has``); BadSeal if it is not what the
        source has sealed for this terminal."""
        key = self._keys.get((header.source, header.seal_id))
        if key is None or now >= key.expires_at:
            raise TicketExpired("no content key for this frame", hint="redeem its ticket, or renew it first")
        identity = self._identity
        ciphertext = memoryview(data)[header.start :]
        # The registry's view of the sender's keys is newer than the directory's that ``look`` went by.
        known = header.topic == key.topic and any(header.sign == keys.sign for keys in key.sender_keys)
        digest = _digest(identity.customer, header.source, identity.terminal, header.inner, ciphertext)
        if not known or not verify(header.sign, header.signature, "frame", digest):
            raise BadSeal("a frame that its source has not signed")
        try:
            return key.cipher.decrypt(header.counter, ciphertext, _payload_aad(header.inner, header.source))
        except InvalidTag:
            raise BadSeal("a frame whose payload is not of its ticket") from None

    def advance(self, now: int) -> None:
        """Drop the keys whose tickets have expired."""
        if now >= self._expiry_from:
            for name in [name for name, key in self._keys.items() if key.expires_at <= now]:
                del self._keys[name]
            self._expiry_from = min((key.expires_at for key in self._keys.values()), default=math.inf)


# --- control messages ---------------------------------------------------------------------------------


def control(
    identity: Identity,
    destination: str,
    destination_keys: Sequence[PublicKeys],
    *,
    kind: str,
    plaintext: bytes,
    now: int,
) -> bytes:
    """A small message to another terminal: an end-to-end ack, a cancel, a query. Whoever passes it on can
    neither read nor change it, nor what ``kind`` it is. It may come twice: say in it what makes a repeat
    harmless."""
    return _boxes(identity, f"{_CONTROL} {kind}", destination, destination_keys, plaintext, now, b"")


def open_control(
    identity: Identity, source: str, peer_keys: Sequence[PublicKeys], *, kind: str, data: Buffer, now: int
) -> bytes:
    plaintext, _, end = _open_boxes(identity, f"{_CONTROL} {kind}", source, peer_keys, data, now)
    if end != len(data):
        raise BadSeal("a control message with something behind it")
    return plaintext


# --- boxes under the pair key -------------------------------------------------------------------------


def _pair_aad(purpose: str, customer: str, source: str, destination: str, clear: bytes) -> bytes:
    # The key is the same for headers and control messages of a day; the purpose keeps them apart.
    return fields("pair", purpose, customer, source, destination, clear)


def _boxes(
    identity: Identity,
    purpose: str,
    destination: str,
    keys: Sequence[PublicKeys],
    plaintext: bytes,
    now: int,
    tail: Buffer,
) -> bytes:
    """The plaintext once for each key of the destination: while it changes its secure key, nobody else knows
    which of the two it has. Then the tail, as it is."""
    size = NONCE_SIZE + len(plaintext) + TAG_SIZE
    if not 0 < len(keys) <= MAX_BOXES or size > MAX_HEADER:
        raise BadRequest(
            f"a header of {size} bytes for {len(keys)} keys", hint="at most 64 KiB, for one or two keys"
        )
    day = now // _DAY
    clear = _CLEAR.pack(_VERSION, len(keys), day, size)
    aad = _pair_aad(purpose, identity.customer, identity.terminal, destination, clear)
    parts: list[Buffer] = [clear]
    for key in keys:
        cipher = identity.pair_cipher(key.wrap, identity.terminal, destination, day)
        parts.append(encrypt(cipher, plaintext, aad))
    parts.append(tail)
    return b"".join(parts)


def _open_boxes(
    identity: Identity, purpose: str, source: str, peer_keys: Sequence[PublicKeys], data: Buffer, now: int
) -> tuple[bytes, PublicKeys, int]:
    """Returns the plaintext, the keys of the source that fitted, and where the boxes end in the data."""
    view = memoryview(data)
    clear = bytes(view[: _CLEAR.size])
    if len(clear) < _CLEAR.size:
        raise BadSeal("a sealed frame that is cut off")
    version, count, day, size = _CLEAR.unpack(clear)
    end = _CLEAR.size + count * size
    # A frame may be days late, so any day that has been is good: the day changes the key, it doesn't limit
    # it.
    sized = NONCE_SIZE + TAG_SIZE <= size <= MAX_HEADER and end <= len(view)
    if version != _VERSION or not 0 < count <= MAX_BOXES or not sized:
        raise BadSeal("that is not a sealed frame")
    if day > now // _DAY + 1:
        raise BadSeal(f"a frame that was sealed {day - now // _DAY} days from now", hint="check the clocks")
    aad = _pair_aad(purpose, identity.customer, source, identity.terminal, clear)
    for keys in peer_keys:
        try:
            cipher = identity.pair_cipher(keys.wrap, source, identity.terminal, day)
        except BadRequest:
            continue
        for start in range(_CLEAR.size, end, size):
            plaintext = decrypt(cipher, view[start : start + size], aad)
            if plaintext is not None:
                return plaintext, keys, end
    raise BadSeal("a frame that was changed on the way, or is not from its source for this terminal")
