"""A mail server on a port of this machine (aiosmtpd): keeps what it gets, and answers as it is told."""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import EmailMessage
from types import SimpleNamespace
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

#: In the place of an answer: the connection ends.
LOSE = "lose"


@dataclass
class MailReceiver:
    """Use it with ``async with``. ``answer``: what it says to a mail, by its number; LOSE: it is kept, and
    the connection is lost before the answer. ``to``: what it says to a recipient."""

    answer: Callable[[int], str] = lambda number: "250 OK"
    to: Callable[[str], str] = lambda address: "250 OK"
    password: str = ""
    port: int = 0
    raw: list[bytes] = field(default_factory=list)
    envelopes: list[tuple[str, list[str]]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    _connections: set[Any] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"smtp+plain://127.0.0.1:{self.port}"

    @property
    def mails(self) -> list[EmailMessage]:
        return [email.message_from_bytes(each, policy=email.policy.default) for each in self.raw]

    @property
    def texts(self) -> list[str]:
        return [mail.get_content().replace("\r\n", "\n").rstrip("\n") for mail in self.mails]

    async def __aenter__(self) -> MailReceiver:
        loop = asyncio.get_running_loop()
        # Not this object: aiosmtpd asks for all that its handler has, and parsing the mails takes long.
        hooks = SimpleNamespace(
            handle_MAIL=self.handle_MAIL, handle_RCPT=self.handle_RCPT, handle_DATA=self.handle_DATA
        )

        def connection() -> SMTP:
            made = SMTP(
                hooks,
                hostname="receiver",
                authenticator=self._authenticate,
                auth_require_tls=False,
                loop=loop,
            )
            self._connections.add(made)
            return made

        self._server = await loop.create_server(connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._connections:
            if each.transport is not None:
                each.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _authenticate(self, server: SMTP, session: Session, envelope: Envelope, how: str, said: Any) -> Any:
        self.logins.append((said.login.decode(), said.password.decode()))
        return AuthResult(success=said.password.decode() == self.password, handled=False)

    async def handle_MAIL(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.password and not session.authenticated:
            return "530 5.7.0 Authentication required"
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        said = self.to(address)
        if said.startswith("250"):
            envelope.rcpt_tos.append(address)
        return said

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        said = self.answer(len(self.raw) + 1)
        if said == LOSE or said.startswith("250"):
            self.raw.append(envelope.original_content or b"")
            self.envelopes.append((envelope.mail_from or "", list(envelope.rcpt_tos)))
        if said == LOSE:
            transport: Any = server.transport
            transport.abort()
            raise ConnectionResetError
        return said
