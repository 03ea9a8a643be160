"""Tickets, and the topic keys behind them: the registry's half of crossing the internet, without its I/O.

A topic has a key pair that never leaves the registry. A sender gets the public half and a ticket, the
temporary password that travels with what it seals. A receiver shows the ticket and gets one content key,
wrapped for it alone. A ticket lives five minutes, always; what was delayed for longer needs a renewed one,
and renewing asks again who may.

The registry authenticates who asks (core.identity.Proofs), parses the ticket, looks up the facts about its
sender, topic and key version, and lets ``issue``, ``redeem`` and ``renew`` decide.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from landbridge.core.time import SECOND
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.primitives import Field, decrypt, derive, encrypt, fields, unwrap, wrap
from landbridge.errors import BadRequest, StoreCorrupt, TicketExpired, TicketRefused

KEY_SIZE = 32
SEAL_ID_SIZE = 16
#: Seconds that a ticket lives.
LIFE = 300.0
#: Opened topic keys that a vault keeps in memory.
_OPENED = 1024
#: A ticket from further ahead than this was written by a clock that has been set back since, microseconds.
_SKEW = 30 * SECOND

LateOpen = Literal["renew", "sender_only", "never"]


# --- keys at rest: master key → customer key → topic key ----------------------------------------------


class CustomerKey(msgspec.Struct, frozen=True):
    sealed: bytes  #: 32 bytes under the master key
    made_at: int


class TopicKey(msgspec.Struct, frozen=True):
    """One version of a topic's key pair."""

    kv: int
    public: bytes  #: X25519, 32 bytes
    sealed_private: bytes  #: under the customer's key
    made_at: int


class Vault:
    """Keeps keys under a master key. What it returns can be stored anywhere; it has no state but a cache."""

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY_SIZE:
            raise BadRequest(f"a master key has {KEY_SIZE} bytes, not {len(master)}")
        self._master = AESGCM(derive(master, fields("master key")))
        self._topic_private = lru_cache(_OPENED)(self._open_topic_key)

    def keep(self, secret: bytes, *context: Field) -> bytes:
        """Any other secret of the registry, under the master key. It opens only with the same context."""
        return encrypt(self._master, secret, fields("kept secret", *context))

    def take(self, kept: bytes, *context: Field) -> bytes:
        return _opened(self._master, kept, fields("kept secret", *context))

    def new_customer_key(self, customer: str, now: int) -> CustomerKey:
        return CustomerKey(self._seal_customer_key(customer, os.urandom(KEY_SIZE)), now)

    def new_topic_key(
        self, customer: str, customer_key: CustomerKey, topic: str, kv: int, now: int
    ) -> TopicKey:
        private = X25519PrivateKey.generate()
        cipher = AESGCM(self._open_customer_key(customer, customer_key.sealed))
        aad = fields("topic key", customer, topic, kv)
        public = private.public_key().public_bytes_raw()
        return TopicKey(kv, public, encrypt(cipher, private.private_bytes_raw(), aad), now)

    def topic_private(
        self, customer: str, customer_key: CustomerKey, topic: str, key: TopicKey
    ) -> X25519PrivateKey:
        """StoreCorrupt if it was not this vault, customer, topic and version that it was made for."""
        return self._topic_private(customer, customer_key.sealed, topic, key.kv, key.sealed_private)

    def rewrapped(self, customer: str, customer_key: CustomerKey, by: Vault) -> CustomerKey:
        """The same customer key under another master key. Topic keys stay as they are."""
        secret = self._open_customer_key(customer, customer_key.sealed)
        return CustomerKey(by._seal_customer_key(customer, secret), customer_key.made_at)

    def _seal_customer_key(self, customer: str, secret: bytes) -> bytes:
        return encrypt(self._master, secret, fields("customer key", customer))

    def _open_customer_key(self, customer: str, sealed: bytes) -> bytes:
        return _opened(self._master, sealed, fields("customer key", customer))

    def _open_topic_key(
        self, customer: str, customer_sealed: bytes, topic: str, kv: int, sealed: bytes
    ) -> X25519PrivateKey:
        cipher = AESGCM(self._open_customer_key(customer, customer_sealed))
        secret = _opened(cipher, sealed, fields("topic key", customer, topic, kv))
        return X25519PrivateKey.from_private_bytes(secret)


def _opened(cipher: AESGCM, sealed: bytes, aad: bytes) -> bytes:
    secret = decrypt(cipher, sealed, aad)
    if secret is None:
        raise StoreCorrupt(
            "a stored key doesn't open",
            hint="give the master key that the registry was started with, or restore its data from a backup",
        )
    return secret


# --- tickets ------------------------------------------------------------------------------------------


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What a ticket says. Terminals see only the encrypted form."""

    seal_id: bytes  #: names the content key; the same in all renewals
    customer: str
    topic: str
    sender: str
    audience: str  #: the one terminal that may redeem it; empty: every member of the topic's groups
    kv: int  #: version of the topic key that the content key is boxed for
    issued_at: int  #: microseconds, as all moments
    expires_at: int
    renew_until: int

    def alive(self, now: int) -> bool:
        return self.issued_at - _SKEW <= now < self.expires_at


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ticket).decode
_VERSION = b"\x01"
_KEY_ID_SIZE = 8


class Mint:
    """Makes and reads tickets. One key makes, the older ones still read: keep those for as long as a ticket
    can be renewed (the greatest max_age of a topic). A new one each day is plenty."""

    def __init__(self, ticket_key: bytes, *, older: Iterable[bytes] = (), life: float = LIFE) -> None:
        self.life = round(life * SECOND)
        #: Key id, in the clear in front of each ticket → cipher.
        self._ciphers = {
            _key_id(key): AESGCM(derive(key, fields("ticket key"))) for key in (*older, ticket_key)
        }
        self._newest = _key_id(ticket_key)

    def issue(self, now: int, customer: str, topic: str, sender: str, kv: int, renew_until: int) -> Ticket:
        expires_at = min(now + self.life, renew_until)
        seal_id = os.urandom(SEAL_ID_SIZE)
        return Ticket(seal_id, customer, topic, sender, "", kv, now, expires_at, renew_until)

    def renew(self, now: int, ticket: Ticket, audience: str) -> Ticket:
        expires_at = min(now + self.life, ticket.renew_until)
        return msgspec.structs.replace(ticket, audience=audience, issued_at=now, expires_at=expires_at)

    def encode(self, ticket: Ticket) -> bytes:
        head = _VERSION + self._newest
        return head + encrypt(self._ciphers[self._newest], _encode(ticket), fields("ticket", head))

    def parse(self, data: bytes) -> Ticket:
        """TicketRefused with one and the same text, whatever is wrong; also for ``redeem`` and ``renew``
        where the ticket is another customer's."""
        head, body = data[: 1 + _KEY_ID_SIZE], data[1 + _KEY_ID_SIZE :]
        cipher = self._ciphers.get(head[1:])
        if cipher is None or head[:1] != _VERSION:
            raise _unknown_ticket()
        plaintext = decrypt(cipher, body, fields("ticket", head))
        if plaintext is None:
            raise _unknown_ticket()
        return _decode(plaintext)


def _key_id(key: bytes) -> bytes:
    if len(key) != KEY_SIZE:
        raise BadRequest(f"a ticket key has {KEY_SIZE} bytes, not {len(key)}")
    return hashlib.sha256(fields("ticket key id", key)).digest()[:_KEY_ID_SIZE]


def _unknown_ticket() -> TicketRefused:
    return TicketRefused("that is not a ticket of this registry")


# --- what the registry answers ------------------------------------------------------------------------


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """To a sender: what it needs to seal for a topic."""

    ticket: bytes
    seal_id: bytes
    topic: str
    kv: int
    public: bytes  #: of the topic key
    issued_at: int  #: by the registry's clock; only the difference to expires_at means something to others
    expires_at: int


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """To a receiver: the content key of one seal, wrapped for it alone."""

    topic: str
    seal_id: bytes
    sender: str
    sender_keys: list[PublicKeys]
    wrapped: bytes
    released_at: int  #: by the registry's clock, as above
    expires_at: int


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    ticket: bytes
    seal_id: bytes
    issued_at: int
    expires_at: int


# --- decisions ----------------------------------------------------------------------------------------


class Requester(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal that asks, as the registry knows it after its proof was good."""

    customer: str
    terminal: str
    keys: PublicKeys  #: those that its proof was made with (Proofs.check returns them)
    member: bool  #: is it in a group of the topic in question?
    revoked: bool = False


def issue(
    now: int, mint: Mint, *, requester: Requester, topic: str, key: TopicKey, max_age: float, may_send: bool
) -> Issue:
    """``key``: the newest of the topic. ``max_age``: of the topic, seconds. ``may_send``: is it one of its
    producers?"""
    _check_requester(requester)
    if not may_send:
        raise TicketRefused(
            f"{requester.terminal} may not send to {topic}", hint="add it to the topic's producers"
        )
    renew_until = now + round(max_age * SECOND)
    ticket = mint.issue(now, requester.customer, topic, requester.terminal, key.kv, renew_until)
    return Issue(
        ticket=mint.encode(ticket),
        seal_id=ticket.seal_id,
        topic=topic,
        kv=key.kv,
        public=key.public,
        issued_at=now,
        expires_at=ticket.expires_at,
    )


def redeem(
    now: int,
    ticket: Ticket,
    box: bytes,
    *,
    requester: Requester,
    topic: str,
    sender_keys: Sequence[PublicKeys],
    private: X25519PrivateKey | None,
) -> Release:
    """``sender_keys``: of the terminal that the ticket names; none if it was removed or revoked. ``private``:
    of the ticket's topic and kv; None if that version is gone."""
    _check_customer(ticket, requester)
    if ticket.topic != topic:
        raise TicketRefused("the ticket is for another topic")
    if ticket.audience not in ("", requester.terminal):
        raise TicketRefused("the ticket was renewed for another terminal")
    if not requester.member:
        raise TicketRefused(f"{requester.terminal} is in no group of {topic}")
    _check_sender(sender_keys)
    # Last: whoever is told that a ticket has expired may get what it wants by renewing it.
    if not ticket.alive(now):
        raise TicketExpired(f"the ticket expired {_ago(now, ticket.expires_at)}")
    if private is None:
        raise TicketExpired(f"version {ticket.kv} of the topic's key is gone", hint="send the message again")
    cek = unwrap(box, private, box_info(ticket.customer, topic, ticket.kv, ticket.seal_id, ticket.sender))
    if cek is None or len(cek) != KEY_SIZE:
        raise TicketRefused("the box doesn't belong to the ticket")
    info = release_info(ticket.customer, topic, ticket.seal_id, requester.terminal)
    return Release(
        topic=topic,
        seal_id=ticket.seal_id,
        sender=ticket.sender,
        sender_keys=list(sender_keys),
        wrapped=wrap(cek, requester.keys.wrap, info),
        released_at=now,
        expires_at=ticket.expires_at,
    )


def renew(
    now: int,
    mint: Mint,
    ticket: Ticket,
    *,
    requester: Requester,
    sender_keys: Sequence[PublicKeys],
    late_open: LateOpen,
) -> Renewal:
    """``sender_keys`` as for ``redeem``. ``requester.member`` and ``late_open`` are about the topic that the
    ticket names. TicketExpired: nobody can renew it any more. TicketRefused: this terminal can't."""
    _check_customer(ticket, requester)
    by_sender = requester.terminal == ticket.sender
    if not by_sender and not requester.member:
        raise TicketRefused(f"{requester.terminal} is neither the sender nor in a group of {ticket.topic}")
    _check_sender(sender_keys)
    if late_open == "never":
        raise TicketExpired(
            f"tickets of {ticket.topic} are not renewed",
            hint="its late_open is 'never': what is late is buried",
        )
    if now >= ticket.renew_until:
        raise TicketExpired(
            f"the ticket could be renewed until {_ago(now, ticket.renew_until)}",
            hint="see the topic's max_age",
        )
    if late_open == "sender_only" and not by_sender:
        raise TicketRefused(
            f"tickets of {ticket.topic} are renewed by their sender", hint="its late_open is 'sender_only'"
        )
    renewed = mint.renew(now, ticket, "" if by_sender else requester.terminal)
    return Renewal(
        ticket=mint.encode(renewed), seal_id=ticket.seal_id, issued_at=now, expires_at=renewed.expires_at
    )


def box_info(customer: str, topic: str, kv: int, seal_id: bytes, sender: str) -> bytes:
    """What the box of a content key is bound to, from the sender to the registry."""
    return fields("box", customer, topic, kv, seal_id, sender)


def release_info(customer: str, topic: str, seal_id: bytes, terminal: str) -> bytes:
    """What a released content key is bound to, from the registry to the receiver."""
    return fields("release", customer, topic, seal_id, terminal)


def _check_customer(ticket: Ticket, requester: Requester) -> None:
    if ticket.customer != requester.customer:
        raise _unknown_ticket()
    _check_requester(requester)


def _check_requester(requester: Requester) -> None:
    if requester.revoked:
        raise TicketRefused(f"{requester.terminal} has been revoked")


def _check_sender(sender_keys: Sequence[PublicKeys]) -> None:
    if not sender_keys:
        raise TicketRefused("the sender of the ticket has been revoked or removed")


def _ago(now: int, moment: int) -> str:
    return f"{max(now - moment, 0) / SECOND:.0f} s ago"
