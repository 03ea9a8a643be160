"""The options of a mail outlet. Apart from the rest, because clients read them, too."""

from __future__ import annotations

import msgspec

from landbridge.core.outlet.spec import OutletSpec


class MailDigest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several messages in one mail."""

    #: Seconds after the first message, and messages, after which the mail goes.
    every: float
    most: int = 100


class MailSpec(OutletSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is mailed to whom."""

    #: smtp://HOST:PORT with STARTTLS, smtps://HOST:PORT, or smtp+plain://HOST:PORT in the clear.
    server: str
    #: Who shows itself to the server; empty: nobody.
    user: str = ""
    #: The address of the header From.
    sender: str
    #: Templates of addresses.
    to: tuple[str, ...]
    subject: str = "{{ topic }}: message {{ offset }}"
    body: str = "{{ payload }}"
    #: The body is HTML, and what is filled in is escaped.
    html: bool = False
    digest: MailDigest | None = None
