"""SMTP: a mail to TOPIC@DOMAIN is a message of the topic, stored before the server answers 250.

Whoever sends a mail shows the credential or a token of a service, over TLS, and needs the scope
``publish:TOPIC``. Nothing is ever passed on to another server. The one mail that is taken from anybody is a
report that a mail of this bus could not be delivered: its address was made by the bus, and is sealed.

The protocol is aiosmtpd's. What it leaves open is bounded here: the bytes and the time of one mail (a line
without an end would grow in memory), line ends, commands of one connection, and text before the TLS
handshake.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session, TLSSetupException

from landbridge.client.bus import Bus
from landbridge.core.mail import incoming as core
from landbridge.core.mail.incoming import MailContent, Recipient
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BusError, Forbidden, TimedOut, Unauthenticated
from landbridge.transport.strangers import Stranger, Strangers

log = structlog.get_logger("landbridge.smtp")
# It tells of each login that a name of its own is outdated.
logging.getLogger("mail.log").setLevel(logging.ERROR)

#: Seconds between two commands, for one mail's data, for one connection, and to store a mail.
IDLE, DATA_WITHIN, SESSION_WITHIN, STORE_WITHIN = 60.0, 300.0, 1800.0, 30.0
#: Seconds of a TLS handshake, and of asking the terminal something.
HANDSHAKE, ASK_WITHIN = 10.0, 10.0
#: Seconds in which a publish that is refused for now (backlog full) is repeated.
PATIENCE = 5.0
#: Recipients of a mail, bytes of a line with its end (RFC 5321 4.5.3.1.6), and bytes of a mail beyond what
#: is allowed that are still read, so that the answer is not lost.
MOST_RECIPIENTS, LONGEST_LINE, OVERRUN = 100, 1000, 1 << 20
#: Commands of one connection.
COMMANDS = {"*": 100, "EHLO": 10, "HELO": 10, "AUTH": 3, "STARTTLS": 1, "MAIL": 1000, "RCPT": 10_000}
COMMANDS |= {"DATA": 1000, "RSET": 1000, "NOOP": 1000}
#: Connections at a time: in all, and of one address that have not shown a credential yet.
MOST_CONNECTIONS, MOST_STRANGERS_EACH = 500, 50

NO_AUTH = "530 5.7.0 Authentication required: the name of a service, and its credential or a token"
WRONG = "535 5.7.8 the service or its credential is wrong, or not accepted"


@dataclass(frozen=True, slots=True)
class SmtpSender:
    """Who has shown a credential: a connection to the terminal, and what it may do."""

    service: str
    scopes: Scopes
    bus: Bus


#: Lets somebody in: (address of the peer, service, credential or token) → who it is. BusError otherwise.
LetIn = Callable[[str, str, str], Awaitable[SmtpSender]]
#: Whether the bus has made an address that mails come back to.
KnowsBounce = Callable[[str], Awaitable[bool]]
#: Takes the report that a mail came back: (what its address says, the mail). BusError where it can't.
TakeBounce = Callable[[str, bytes], Awaitable[None]]


@dataclass
class SmtpFigures:
    """What has happened since the start, for metrics."""

    stored: int = 0
    refused: int = 0
    bounces: int = 0


@dataclass
class SmtpDoor:
    """What all connections have in common. ``largest``: bytes of a mail, as the terminal allows them now.
    ``knows_bounce``: whether the bus has made such an address."""

    domain: str
    let_in: LetIn
    largest: Callable[[], int]
    knows_bounce: KnowsBounce | None = None
    take_bounce: TakeBounce | None = None
    figures: SmtpFigures = field(default_factory=SmtpFigures)
    connections: set[SmtpConnection] = field(default_factory=set)

    def close(self) -> None:
        """End all connections. A mail that has no answer yet is sent again."""
        for connection in list(self.connections):
            connection.cut()

    # -- the hooks of aiosmtpd ---------------------------------------------------------------------

    async def handle_MAIL(  # noqa: N802
        self, server: SmtpConnection, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """MAIL FROM. A stranger may only bring what came back, which has no sender."""
        sender = "" if address == "<>" else address
        if sender and server.sender is None:
            return NO_AUTH
        envelope.mail_from = sender or "<>"
        envelope.mail_options.extend(options)
        return "250 2.1.0 OK"

    async def handle_RCPT(  # noqa: N802
        self, server: SmtpConnection, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """RCPT TO. Whether the sender may publish to the topic is known before the mail comes."""
        if len(server.recipients) >= MOST_RECIPIENTS:
            return f"452 4.5.3 more than {MOST_RECIPIENTS} recipients, send it again to the others"
        try:
            recipient = core.read_recipient(address, self.domain)
            if recipient.bounce:
                if envelope.mail_from != "<>" or not await self._knows_bounce(recipient.bounce):
                    return "550 5.1.1 no such address"
            elif server.sender is None:
                return NO_AUTH
            else:
                await self._check_topic(server.sender, recipient.topic)
        except BusError as error:
            self.figures.refused += 1
            return core.answer_to(error)
        if recipient not in server.recipients:
            server.recipients.append(recipient)
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def _knows_bounce(self, said: str) -> bool:
        if self.knows_bounce is None:
            return False
        async with _in_time(ASK_WITHIN):
            return await self.knows_bounce(said)

    async def _check_topic(self, sender: SmtpSender, topic: str) -> None:
        """The topic is there, and the sender may publish to it. A mail makes no topics: its address may be
        mistyped."""
        sender.scopes.demand("publish", topic)
        async with _in_time(ASK_WITHIN):
            await sender.bus.topics.show(topic)

    async def handle_DATA(self, server: SmtpConnection, session: Session, envelope: Envelope) -> str:  # noqa: N802
        """The mail is here. 250 says that it is stored."""
        mail = envelope.original_content or b""
        try:
            core.check_lines(mail)
            head = core.read_head(mail)
            bounces = [each for each in server.recipients if each.bounce]
            if bounces and self.take_bounce is not None:
                for each in bounces:
                    await self.take_bounce(each.bounce, mail)
                    self.figures.bounces += 1
            topics = [each for each in server.recipients if each.topic]
            if topics and server.sender is not None:
                sender = "" if envelope.mail_from is None else envelope.mail_from
                await self._store(server.sender, sender, topics, mail, head)
                self.figures.stored += 1
        except BusError as error:
            self.figures.refused += 1
            log.info("mail refused", peer=server.peer, cause=error.code, why=str(error))
            return core.answer_to(error)
        return "250 2.0.0 stored"

    async def _store(
        self, sender: SmtpSender, said: str, recipients: list[Recipient], mail: bytes, head: Any
    ) -> None:
        """Publish to all topics, or to none."""
        own = {"mail-sender": said[:1000], "mail-service": sender.service}
        contents: dict[str, MailContent] = {}
        for form in {each.form for each in recipients}:
            # Mails with many parts take a while, and others wait for the loop.
            contents[form] = await asyncio.to_thread(core.content_of, mail, head, form)
        form = recipients[0].form if len({each.form for each in recipients}) == 1 else "mail"
        key = core.mail_key(head, sender.service, form)
        async with _in_time(STORE_WITHIN):
            if len(recipients) == 1:
                content = contents[recipients[0].form]
                await sender.bus.publish(
                    recipients[0].topic,
                    content.payload,
                    headers={**content.headers, **own},
                    idempotency_key=key,
                )
                return
            async with sender.bus.transaction(idempotency_key=key) as transaction:
                for each in recipients:
                    content = contents[each.form]
                    await transaction.publish(each.topic, content.payload, headers={**content.headers, **own})

    async def handle_exception(self, error: Exception) -> str:
        """A bug, or a peer that is gone."""
        log.error("smtp failed", exc_info=error)
        return "451 4.3.0 the server failed, try again later"


class SmtpConnection(SMTP):
    """One connection."""

    line_length_limit = LONGEST_LINE

    def __init__(
        self,
        door: SmtpDoor,
        strangers: Strangers,
        stranger: Stranger,
        tls: ssl.SSLContext | None,
        *,
        is_encrypted: bool,
    ) -> None:
        """``tls``: for STARTTLS. ``is_encrypted``: TLS stands already. Without both, the port is this
        machine's alone, and credentials are taken as they are."""
        super().__init__(
            door,
            data_size_limit=door.largest(),
            enable_SMTPUTF8=True,
            hostname=door.domain,
            ident="Landbridge",
            tls_context=None if is_encrypted else tls,
            timeout=IDLE,
            auth_require_tls=tls is not None and not is_encrypted,
            command_call_limit=COMMANDS,
            loop=asyncio.get_running_loop(),
        )
        self._door = door
        self._strangers = strangers
        self._stranger = stranger
        #: Who has shown a credential; None: nobody yet.
        self.sender: SmtpSender | None = None
        #: Of the mail that is being delivered.
        self.recipients: list[Recipient] = []
        self._end: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The address that the connection comes from."""
        said = self.session.peer if self.session is not None else None
        return str(said[0]) if isinstance(said, tuple) else ""

    def cut(self) -> None:
        """End it at once."""
        transport = self.transport
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._door.connections.add(self)
        # Listener has counted it without a transport until now.
        self._strangers.leave(self._stranger)
        self._stranger = self._strangers.enter(self._stranger.address, self.cut)
        self._end = self.loop.call_later(SESSION_WITHIN, self.cut)
        if len(self._door.connections) > MOST_CONNECTIONS and not self._strangers.make_room():
            self.cut()

    def connection_lost(self, error: Exception | None) -> None:
        self._door.connections.discard(self)
        self._strangers.leave(self._stranger)
        if self._end is not None:
            self._end.cancel()
        if self.sender is not None:
            closing = asyncio.ensure_future(self.sender.bus.close())
            closing.add_done_callback(_closed)
        super().connection_lost(error)

    def _set_post_data_state(self) -> None:
        super()._set_post_data_state()  # type: ignore[no-untyped-call]
        self.recipients = []

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        try:
            found: tuple[str | None, str | None] = super()._getaddr(arg)
        except (AttributeError, IndexError, NameError, ValueError, RecursionError):
            # The parser of the standard library has bugs with what is no address; a stranger may say it.
            return None, None
        return found

    # -- TLS ---------------------------------------------------------------------------------------

    async def smtp_STARTTLS(self, arg: str) -> None:  # noqa: N802
        """Begin TLS, and forget what was said before (RFC 3207 4.2)."""
        if arg or self.tls_context is None or self._tls_protocol is not None:
            await self.push("501 5.5.4 STARTTLS has no arguments" if arg else "454 4.7.0 TLS not available")
            return
        if self._reader._buffer:  # type: ignore[attr-defined]
            # Somebody on the way may have put it there, to be read as if it had come by TLS.
            await self.push("503 5.5.1 nothing may follow STARTTLS before its answer")
            self.cut()
            return
        await self.push("220 2.0.0 Ready to start TLS")
        self._reader._buffer.clear()  # type: ignore[attr-defined]
        try:
            await self._writer.start_tls(self.tls_context, ssl_handshake_timeout=HANDSHAKE)
        except (OSError, ConnectionError) as error:
            self.cut()
            raise TLSSetupException from error
        transport = self._writer.transport
        self.transport = transport
        self._reader._transport = transport  # type: ignore[attr-defined]
        self._tls_protocol = transport  # type: ignore[assignment]  # aiosmtpd asks whether there is one
        assert self.session is not None
        self.session.ssl = {}
        self.session.host_name = None
        self.session.extended_smtp = False
        self._set_rset_state()  # type: ignore[no-untyped-call]

    # -- credentials -------------------------------------------------------------------------------

    async def auth_PLAIN(self, _: Any, args: list[str]) -> AuthResult:  # noqa: N802
        """AUTH PLAIN (RFC 4616), with the answer in the command or after a challenge."""
        raw = await self._answer("", args[1:])
        if raw is None:
            return AuthResult(success=False, handled=True)
        parts = raw.split(b"\0")
        if len(parts) != 3:
            return _refused("501 5.5.2 AUTH PLAIN is NUL user NUL password")
        return await self._let_in(parts[1], parts[2])

    async def auth_LOGIN(self, _: Any, args: list[str]) -> AuthResult:  # noqa: N802
        """AUTH LOGIN, which has no standard and many users."""
        user = await self._answer("User Name\0", args[1:])
        password = None if user is None else await self._answer("Password\0", [])
        if user is None or password is None:
            return AuthResult(success=False, handled=True)
        return await self._let_in(user, password)

    async def _answer(self, challenge: str, said: list[str]) -> bytes | None:
        """What the peer says to a challenge, unless it has said it in the command; None: nothing that can be
        used, and the peer was told so."""
        if not said:
            try:
                answer = await self.challenge_auth(challenge)
            except ValueError:  # of the stream: a line that is longer than any
                await self.push("500 5.5.2 Line too long")
                self.cut()
                return None
            return answer if isinstance(answer, bytes) else None
        try:
            return base64.b64decode(said[0].encode(), validate=True)
        except binascii.Error:
            await self.push("501 5.5.2 no base64")
            return None

    async def _let_in(self, user: bytes, password: bytes) -> AuthResult:
        try:
            async with _in_time(ASK_WITHIN):
                self.sender = await self._door.let_in(
                    self.peer, user.decode(errors="replace"), password.decode(errors="replace")
                )
        except (Unauthenticated, Forbidden):
            return _refused(WRONG)
        except BusError as error:
            return _refused(f"454 4.7.0 {core.answer_to(error)[10:]}")
        self._strangers.leave(self._stranger)
        return AuthResult(success=True, auth_data=self.sender.service)

    # -- a mail ------------------------------------------------------------------------------------

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        """Read a mail, within bounds of bytes and time."""
        if await self.check_helo_needed():
            return
        envelope = self.envelope
        if envelope is None or not self.recipients:
            await self.push("503 5.5.1 send RCPT first")
            return
        if arg:
            await self.push("501 5.5.4 DATA has no arguments")
            return
        await self.push("354 End data with <CR><LF>.<CR><LF>")
        self._reset_timeout(DATA_WITHIN)
        mail, refusal = await self._read_mail()
        self._reset_timeout(STORE_WITHIN + IDLE)
        if refusal:
            self._door.figures.refused += 1
            status = refusal
        else:
            envelope.content = envelope.original_content = mail
            status = await self._door.handle_DATA(self, self.session, envelope)  # type: ignore[arg-type]
        self._set_post_data_state()
        self._reset_timeout()
        await self.push(status)

    async def _read_mail(self) -> tuple[bytes, str]:
        """The mail without the dots that were added, and why it is refused. Read to its end, so that the
        next command is one."""
        read, mail, refusal, starts = 0, bytearray(), "", True
        most = self.data_size_limit or 0
        while True:
            try:
                line = await self._reader.readuntil(b"\r\n")
            except asyncio.LimitOverrunError as error:
                line = await self._reader.readexactly(error.consumed)
                refusal = refusal or f"500 5.6.0 a line of more than {LONGEST_LINE} bytes"
            if starts and line == b".\r\n":
                return bytes(mail), refusal
            read += len(line)
            if read > most:
                refusal = refusal or f"552 5.3.4 more than {most} bytes"
            if read > most + OVERRUN:
                await self.push(refusal)
                self.cut()
                raise ConnectionResetError("a mail without end")
            if refusal:
                mail.clear()
            else:
                mail += line[1:] if starts and line.startswith(b".") else line
            starts = line.endswith(b"\r\n")


def _refused(message: str) -> AuthResult:
    return AuthResult(success=False, handled=False, message=message)


def _closed(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("connection not closed in good order", why=str(error))


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimedOut(f"no answer from the terminal within {seconds:.0f} s") from None
