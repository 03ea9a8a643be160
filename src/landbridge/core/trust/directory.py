"""The directory: what a customer has, as its terminals know it. The registry writes and signs it; terminals
keep the newest on disk and hand it to each other, so a bus goes on without the registry, and a revocation
spreads.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.core.trust.primitives import is_signed
from landbridge.errors import BadFrame, Unauthenticated

_LABEL = b"landbridge/1 directory"


class PublicKeys(msgspec.Struct, frozen=True):
    """The public halves of one secure key."""

    sign: bytes  #: Ed25519, 32 bytes
    wrap: bytes  #: X25519, 32 bytes


class TerminalEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    mode: Literal["server", "client"]
    #: Where a server listens for other terminals, as lb://host:port or lbs://host:port. Empty for a client.
    address: str = ""
    region: str = ""
    #: Newest first; two while a rotation is under way.
    keys: list[PublicKeys]
    #: It is being emptied, and gets nothing new.
    draining: bool = False
    #: For a server: whether it may carry parcels that are neither from nor for it.
    transit: bool = True
    #: Added to the cost of each of its links, in milliseconds.
    admin_cost: float = 0.0

    @property
    def carries(self) -> bool:
        """Whether parcels may pass through it that are neither from nor for it."""
        return self.mode == "server" and self.transit


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal group: the terminals where its consumers may be."""

    name: str
    terminals: list[str] = []  #: ids


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: Group → when it was added to the topic, microseconds: it gets what was published since.
    groups: dict[str, int] = {}
    #: What may be done about a ticket that expired on the way.
    late_open: Literal["renew", "sender_only", "never"] = "renew"
    #: "message": one ticket for each message, to the letter of the law.
    ticket_scope: Literal["window", "message"] = "window"
    #: Seconds that a ticket can be renewed for: no message is older when it is opened.
    max_age: float = 7 * 86400.0


class TokenKey(msgspec.Struct, frozen=True):
    """A key with which the registry signs the tokens of the customer's services."""

    public: bytes  #: Ed25519, 32 bytes
    #: The moment from which on no token by it is taken, microseconds; 0: none.
    until: int = 0


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    customer: str
    #: Greater with every change.
    version: int
    terminals: list[TerminalEntry] = []
    groups: list[GroupEntry] = []
    topics: list[TopicEntry] = []
    #: Ids of terminals that nobody may talk to any more.
    revoked: list[str] = []
    #: The certificate authority of this customer's links, PEM; empty where there is none.
    ca: str = ""
    #: Links by the long-term plan: the places of two terminals in ``terminals``, and the cost in ms.
    planned: list[tuple[int, int, float]] = []
    #: The keys that tokens of the customer's services are signed with; see ``registered_tokens``.
    token_keys: list[TokenKey] = []
    #: Names of the services that the registry has registered, suspended ones too.
    services: list[str] = []
    #: Service → the version of the directory before which its tokens have ended, where one may still live.
    ended: dict[str, int] = {}


class SignedDirectory(msgspec.Struct, frozen=True):
    body: bytes
    signature: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Directory).decode
_decode_kept = msgspec.msgpack.Decoder(tuple[SignedDirectory, SignedDirectory]).decode


def sign(directory: Directory, key: Ed25519PrivateKey) -> SignedDirectory:
    body = _encode(directory)
    return SignedDirectory(body, key.sign(_LABEL + body))


def verify(signed: SignedDirectory, registry_key: bytes) -> Directory:
    """The directory, if the registry with this public key (32 bytes) has signed it."""
    if not is_signed(registry_key, signed.signature, _LABEL + signed.body):
        raise Unauthenticated("a directory that the registry has not signed")
    try:
        return _decode(signed.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"a directory that doesn't decode: {error}") from None


def keep(signed: SignedDirectory, topics: SignedDirectory) -> bytes:
    """What a terminal stores: the newest directory, and the part of it about the terminal's topics."""
    return _encode([signed, topics])


def kept(raw: bytes) -> tuple[SignedDirectory, SignedDirectory]:
    """What a terminal has stored. ValueError where it can't be read."""
    try:
        return _decode_kept(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a stored directory that doesn't decode: {error}") from None


def read_kept(raw: bytes) -> Directory:
    """The directory that a terminal has stored, which it had verified before. ValueError where it can't be
    read."""
    signed, _ = kept(raw)
    try:
        return _decode(signed.body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a stored directory that doesn't decode: {error}") from None
