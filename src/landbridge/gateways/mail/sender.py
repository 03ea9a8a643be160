"""Mail outlets: messages as mails, handed over to a mail server.

A message is acked when the server has taken its mail (250 after the data). If the connection is lost before
the answer, the mail goes again with the same Message-ID. A refusal for good (5xx) of a mail gives its message
up at once. A mail that the server has taken and can't deliver comes back to an address that names its
message, where this bus takes mail itself: then the message is handed out once more, and given up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import NamedTuple

import aiosmtplib
import structlog
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.core.addresses import AllowList, read_address
from landbridge.core.mail import outgoing as core
from landbridge.core.mail.outgoing import BouncedMail, MailServer, MailTarget, StoredMail
from landbridge.core.mail.report import read_report
from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import Admission, OutletProbe, OutletState
from landbridge.core.outlet.spec import OutletAttempt, Verdict
from landbridge.core.templates import MessageValues
from landbridge.errors import BadPayload, Unavailable, UnknownOutlet
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import Resolve, resolve
from landbridge.gateways.outlets import EachAlone, GatheringRule, ToldByStatus, WatchedSenders

log = structlog.get_logger("landbridge.mail")

#: Mails of one outlet under way at once, to one server, and of all.
WIDTH, MOST_AT_ONE_HOST, MOST_AT_ONCE = 4, 8, 32
#: Seconds for a mail, with the connection and all that is said.
WITHIN = 60.0


class SaidBack(NamedTuple):
    """What came of handing a mail over."""

    verdict: Verdict
    status: int
    answer: str = ""
    detail: str = ""


class MailWay:
    """The way out for mails: to servers whose address is allowed, as for requests to URLs."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        domain: str = "",
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """``domain``: where this bus takes mail itself; empty: nowhere. ``trust``: the certificates to trust;
        None: the system's."""
        self.domain = domain
        self._allowed = AllowList(allowed)
        self._resolve = resolve
        self._trust = trust
        self._rooms = HostRooms(MOST_AT_ONCE, MOST_AT_ONE_HOST)

    async def hand_over(
        self, server: MailServer, user: str, password: str, back_to: str, target: MailTarget | None
    ) -> SaidBack:
        """Hand a mail over; None: show the credential alone. ``back_to``: where the mail comes back to."""
        async with self._rooms.taken(f"//[{server.host}]" if ":" in server.host else f"//{server.host}"):
            try:
                async with asyncio.timeout(WITHIN):
                    return await self._hand_over(server, user, password, back_to, target)
            except TimeoutError:
                return SaidBack("failed", 0, detail=f"no answer within {WITHIN:.0f} s")
            except aiosmtplib.SMTPResponseException as error:
                return _refusal(error)
            except (aiosmtplib.SMTPException, OSError) as error:
                return SaidBack("failed", 0, detail=f"{type(error).__name__}: {error}"[:300])

    async def _hand_over(
        self, server: MailServer, user: str, password: str, back_to: str, target: MailTarget | None
    ) -> SaidBack:
        connected = await self._connect(server)
        if isinstance(connected, str):
            return SaidBack("failed", 0, detail=connected)
        try:
            client = aiosmtplib.SMTP(
                hostname=server.host,
                sock=connected,
                username=user or None,
                password=password if user else None,
                local_hostname=self.domain or "localhost",
                timeout=WITHIN,
                use_tls=server.tls == "tls",
                start_tls=server.tls == "starttls",
                tls_context=self._trust if server.tls != "none" else None,
            )
            await client.connect()
        except BaseException:
            connected.close()
            raise
        try:
            if target is None:
                said = await client.noop()
                return SaidBack(core.verdict_of(said.code, is_of_message=False), said.code, said.message)
            refused, answer = await _send(client, back_to, target)
        finally:
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=5.0)
            client.close()
        if refused:
            return _partly(refused)
        return SaidBack("delivered", 250, answer)

    async def _connect(self, server: MailServer) -> socket.socket | str:
        """A connection to an address of the server that is allowed; a text says why there is none."""
        address = read_address(server.host)
        try:
            found = [str(address)] if address else await self._resolve(server.host, server.port)
        except (OSError, ValueError) as error:  # also of a name that can't be looked up: UnicodeError
            return f"no address of {server.host}: {error}"
        allowed = next((each for each in found if self._allowed.allows(server.host, ip_address(each))), None)
        if allowed is None:
            shown = ", ".join(found[:4]) or "nothing"
            return f"{server.host} leads to {shown}: the terminal may not send there without --allow-outgoing"
        family = socket.AF_INET6 if ":" in allowed else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (allowed, server.port))
        except BaseException:
            made.close()
            raise
        return made


async def _send(
    client: aiosmtplib.SMTP, back_to: str, target: MailTarget
) -> tuple[dict[str, aiosmtplib.SMTPResponse], str]:
    """Recipients that were refused, and the answer to the mail. Only what makes a mail's lines safe is used
    of the client."""
    try:
        return await client.send_message(target.mail, sender=back_to, recipients=target.recipients)
    except aiosmtplib.SMTPRecipientsRefused as error:
        refused = {
            each.recipient: aiosmtplib.SMTPResponse(each.code, each.message) for each in error.recipients
        }
        if len(refused) == 1 or all(each.code >= 500 for each in refused.values()):
            first = error.recipients[0]
            told = "; ".join(f"{address}: {said.code} {said.message}" for address, said in refused.items())
            raise aiosmtplib.SMTPResponseException(first.code, told) from None
        raise aiosmtplib.SMTPResponseException(451, "some recipients are refused for now") from None


def _refusal(error: aiosmtplib.SMTPResponseException) -> SaidBack:
    """The server has said no."""
    is_of_connection = isinstance(
        error,
        aiosmtplib.SMTPAuthenticationError | aiosmtplib.SMTPConnectResponseError | aiosmtplib.SMTPHeloError,
    )
    verdict = core.verdict_of(error.code, is_of_message=not is_of_connection)
    return SaidBack(verdict, max(0, error.code), error.message[:200], error.message[:250])


def _partly(refused: dict[str, aiosmtplib.SMTPResponse]) -> SaidBack:
    """Some recipients have the mail, others don't: the message is given up with their names, for somebody to
    decide. Sending it again would reach the first ones twice."""
    told = "; ".join(f"{address}: {said.code} {said.message}" for address, said in refused.items())
    status = next(iter(refused.values())).code
    return SaidBack("refused", status, told[:200], f"taken for the other recipients, not for {told}"[:250])


class MailForm(ToldByStatus, EachAlone):
    """Mail outlets, as the sender of outlets sends them."""

    noun = "mail"
    states = core.STATES
    width = WIDTH

    def __init__(self, way: MailWay) -> None:
        self._way = way
        #: Mails that came back, by the outlet's id, from before the terminal is told until its document says
        #: so: a message may be handed out again before the document is seen here.
        self._coming_back: dict[str, list[BouncedMail]] = {}

    @asynccontextmanager
    async def coming_back(self, id: str, bounced: BouncedMail) -> AsyncIterator[Callable[[], None]]:
        """Give these messages up from now on; until the block fails, or calls what it is given."""
        waiting = self._coming_back.setdefault(id, [])
        if bounced not in waiting:
            waiting.append(bounced)
        del waiting[: -core.MOST_BOUNCED]

        def forget() -> None:
            if bounced in waiting:
                waiting.remove(bounced)

        try:
            yield forget
        except BaseException:
            forget()
            raise

    def group_name(self, name: str) -> str:
        """The group that is read."""
        return core.group_name(name)

    def gathers(self, stored: StoredMail) -> GatheringRule | None:
        """The messages of a digest."""
        digest = stored.spec.digest
        return None if digest is None else GatheringRule(digest.most, digest.every)

    def admit(self, stored: StoredMail, state: OutletState, message: Message, now: int) -> Admission:
        """A message whose mail came back, or of which no mail can be made, is given up."""
        bounced = self._comes_back(stored, message.offset)
        bounced = bounced or core.bounce_of(stored.bounced, message.offset)
        if bounced is not None:
            return Admission(state, "bury", f"the mail came back: {bounced.cause}")
        try:
            core.make_mail(stored.spec, [values_of(stored.spec.topic, message)], message.id, now)
        except BadPayload as error:
            return Admission(state, "bury", str(error))
        return Admission(state)

    def _comes_back(self, stored: StoredMail, offset: int) -> BouncedMail | None:
        """The mail of this message that has just come back. It is forgotten here once it is given up: an
        operator may have it sent again."""
        waiting = self._coming_back.get(stored.id, [])
        found = core.bounce_of(waiting, offset)
        if found is not None and offset == found.end - 1:
            waiting.remove(found)
        return found

    async def send(self, stored: StoredMail, messages: list[Message], number: int, now: int) -> OutletAttempt:
        """Hand the mail of one message or of several over."""
        spec, first = stored.spec, messages[0]
        values = [values_of(spec.topic, each, len(messages)) for each in messages]
        target = core.make_mail(spec, values, first.id, now)
        span = messages[-1].offset + 1 - first.offset
        back_to = spec.sender
        if self._way.domain:
            back_to = core.bounce_address(stored, first.offset, span, self._way.domain)
        return await self._attempt(
            stored, core.mail_id(spec, first.id), back_to, target, number, first.offset, now, len(messages)
        )

    async def send_test(self, stored: StoredMail, probe: OutletProbe, now: int) -> OutletAttempt:
        """A mail to the recipients that are fixed; without any, the credential is shown alone."""
        fixed = tuple(each for each in stored.spec.to if not core.recipient_template(each).places)
        target = None
        if fixed:
            spec = replace(
                stored.spec,
                to=fixed,
                subject=f"Test of {stored.spec.name}",
                body="This is a test: the messages of {{ topic }} come this way.",
                digest=None,
            )
            values = MessageValues(b"", {}, more={"topic": spec.topic}, time=now)
            target = core.make_mail(spec, [values], probe.id, now)
        return await self._attempt(stored, probe.id, stored.spec.sender, target, 1, None, now, 1)

    async def _attempt(
        self,
        stored: StoredMail,
        id: str,
        back_to: str,
        target: MailTarget | None,
        number: int,
        offset: int | None,
        now: int,
        messages: int,
    ) -> OutletAttempt:
        spec = stored.spec
        begun = asyncio.get_running_loop().time()
        said = await self._way.hand_over(
            core.read_server(spec.server), spec.user, stored.password, back_to, target
        )
        return OutletAttempt(
            id=id,
            at=now,
            seconds=round(asyncio.get_running_loop().time() - begun, 3),
            verdict=said.verdict,
            number=number,
            offset=offset,
            status=said.status,
            detail=said.detail[: outlet.LONGEST_DETAIL],
            answer=said.answer[: outlet.LONGEST_ANSWER],
            messages=messages,
        )


class MailSenders(WatchedSenders):
    """Sends the mail outlets of a terminal while its block lasts, and takes what comes back."""

    def __init__(
        self, bus: Bus, bus_of: Callable[[str, str], Bus], way: MailWay, clock: Callable[[], int]
    ) -> None:
        self._form = MailForm(way)
        super().__init__(bus, bus_of, clock, self._form, core.COLLECTION, StoredMail)
        #: Of mails that came back, for metrics.
        self.bounces = 0

    def _find(self, said: str) -> StoredMail | None:
        """The outlet that an address of a mail that comes back names, if this bus has made the address."""
        target = core.read_bounce(said)
        if target is None:
            return None
        for sender in self.senders.values():
            stored = sender.stored
            if isinstance(stored, StoredMail) and stored.id == target.id:
                return stored if core.is_sealed(stored, said) else None
        return None

    def knows_bounce(self, said: str) -> bool:
        """Whether this bus has made the address."""
        return self._find(said) is not None

    async def take_bounce(self, said: str, mail: bytes) -> None:
        """A mail came back. Done when the terminal has it on disk that its messages are given up."""
        stored, target = self._find(said), core.read_bounce(said)
        if stored is None or target is None:
            raise UnknownOutlet("no outlet has sent this mail")
        report = await asyncio.to_thread(read_report, mail)
        topic, name = stored.spec.topic, stored.spec.name
        if report is None or report.action != "failed":
            # Of a delay, of a success, or an answer that a machine has sent.
            log.info("a mail's report changes nothing", topic=topic, mail=name)
            return
        if self.bus.closed is not None:
            raise Unavailable("the terminal is shutting down")
        first, end = target.first, target.first + target.messages
        bounced = BouncedMail(first, end, report.cause)
        async with self._form.coming_back(stored.id, bounced) as forget:
            done = await self.bus.mails.bounce(topic, name, first=first, end=end, cause=report.cause)
            if not done.messages:  # it was said before, or nothing is left of them
                forget()
        self.bounces += 1


def values_of(topic: str, message: Message, count: int = 1) -> MessageValues:
    """What a template may name of a message."""
    more = {
        "topic": topic,
        "id": message.id,
        "offset": str(message.offset),
        "count": str(count),
    }
    if message.key is not None:
        more["key"] = message.key
    return MessageValues(bytes(message.payload), message.headers, more=more, time=message.time)
