"""Mail beside a terminal, in its process: the ports that take mails, and the sender of mail outlets."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from landbridge.broker.cluster import Cluster
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.mail.outgoing import COLLECTION, STATES, read_bounce
from landbridge.core.trust import credential
from landbridge.errors import BadRequest, TerminalUnreachable, Unauthenticated, UnknownOutlet
from landbridge.node.listening import Endpoint
from landbridge.node.outlets import counted_in, outlet_buses
from landbridge.node.plan import SmtpPlan
from landbridge.protocol import operations as table
from landbridge.transport.listener import Listener, bind
from landbridge.transport.strangers import Strangers, site_of

try:
    from landbridge.gateways.mail import smtp as gateway
    from landbridge.gateways.mail.sender import MailSenders, MailWay
    from landbridge.gateways.mail.smtp import SmtpConnection, SmtpDoor, SmtpFigures, SmtpSender
except ImportError as missing:
    raise BadRequest(
        f"mail needs aiosmtpd and aiosmtplib: {missing}", hint="pip install 'landbridge[mail]'"
    ) from None

#: What connections of senders call themselves.
NAME = "smtp"
#: The part that nodes ask each other for with a mail that came back.
BACK = "mail-back"
#: The subject of the sender's own credential, and what its connections call themselves.
SUBJECT = "mails"
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\Z")


@asynccontextmanager
async def mails_of(
    terminal: Terminal, dial: Dial, allowed: Iterable[str], domain: str = "", way: MailWay | None = None
) -> AsyncIterator[MailSenders]:
    """Send the mail outlets of a terminal while the block lasts. ``allowed``: networks and hosts beside the
    public addresses that mails may be handed over to. ``domain``: where this bus takes mail itself. ``way``:
    another way out."""
    way = way or MailWay(allowed, domain=domain)
    # A mail that came back is told by an operator.
    async with (
        outlet_buses(terminal, dial, SUBJECT, (COLLECTION, STATES), "operate") as buses,
        MailSenders(buses.bus, buses.reader_of, way, terminal.broker.clock) as senders,
    ):
        with counted_in(terminal, senders):
            yield senders


def door_of(terminal: Terminal, dial: Dial, domain: str, senders: MailSenders | None = None) -> SmtpDoor:
    """What takes mails for a terminal. ``dial``: reaches it, for whoever has shown a credential. ``senders``:
    whose mails come back."""
    if len(domain) > 253 or not _DOMAIN.match(domain):
        raise BadRequest(f"no domain of mail addresses: {domain[:60]!r}", hint="such as bus.example")

    async def let_in(address: str, service: str, secret: str) -> SmtpSender:
        if secret.startswith(credential.SERVICE):
            # How often an address may be wrong is bounded there.
            asked = {"service": service, "credential": secret}
            await terminal.answer_stranger(site_of((address,)), table.SERVICE_TOKEN.name, asked)
        identity = terminal.authority.verify(terminal.broker.clock(), secret)
        if identity.subject != service:
            raise Unauthenticated("the token is another service's")
        bus = Bus(dial, secret, name=NAME, patience=gateway.PATIENCE)
        await bus.open()
        return SmtpSender(service, identity.scopes, bus)

    door = SmtpDoor(domain, let_in, lambda: terminal.broker.limits.max_payload)
    if senders is not None:
        _take_back(terminal.cluster, door, senders)
    return door


def _take_back(cluster: Cluster | None, door: SmtpDoor, senders: MailSenders) -> None:
    """Have a door take the mails that come back. Of several nodes, any may be brought the report, and the one
    that sends the outlet's mails takes it."""

    async def take(said: str, mail: bytes) -> bool:
        if not senders.knows_bounce(said):
            return False
        if mail:
            await senders.take_bounce(said, mail)
        return True

    async def ask(said: str, mail: bytes = b"") -> bool:
        if cluster is None or read_bounce(said) is None:
            return await take(said, mail)
        return await cluster.ask_parts(BACK, said, mail)

    async def take_bounce(said: str, mail: bytes) -> None:
        if not await ask(said, mail):
            raise UnknownOutlet("no outlet has sent this mail")

    if cluster is not None:
        cluster.register_part(BACK, take)
    door.knows_bounce, door.take_bounce = ask, take_bounce


@asynccontextmanager
async def taking_mail(
    terminal: Terminal,
    dial: Dial,
    plan: SmtpPlan,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    senders: MailSenders | None = None,
) -> AsyncIterator[str]:
    """Take mails while the block lasts. Yields where, in words."""
    door = door_of(terminal, dial, plan.domain, senders)
    if plan.tls_port is not None and tls is None:
        raise BadRequest("--smtps needs a certificate", hint="give --tls-cert and --tls-key")
    strangers = Strangers(gateway.MOST_STRANGERS_EACH, gateway.MOST_CONNECTIONS)
    listeners: list[Listener] = []
    told = []
    try:
        for port, is_encrypted in ((plan.port, False), (plan.tls_port, True)):
            if port is None:
                continue
            found = await _listen(door, endpoint, port, tls, strangers, listeners, is_encrypted=is_encrypted)
            told.append(f"{'smtps' if is_encrypted else 'smtp'}://{endpoint.host}:{found}")
        figures = partial(_figures, door.figures)
        terminal.broker.figures.append(figures)
        try:
            yield f"{' '.join(told)} for TOPIC@{plan.domain}"
        finally:
            terminal.broker.figures.remove(figures)
    finally:
        for listener in listeners:
            listener.close()
        door.close()


async def _listen(
    door: SmtpDoor,
    endpoint: Endpoint,
    port: int,
    tls: ssl.SSLContext | None,
    strangers: Strangers,
    listeners: list[Listener],
    *,
    is_encrypted: bool,
) -> int:
    try:
        bound = await bind(endpoint.host, port)
    except OSError as error:
        raise TerminalUnreachable(
            f"can't listen on {endpoint.host}:{port}: {error.strerror}", hint="give --smtp another number"
        ) from None
    found: int = bound[0].getsockname()[1]
    for each in bound:
        listeners.append(
            Listener(
                each,
                lambda stranger: SmtpConnection(door, strangers, stranger, tls, is_encrypted=is_encrypted),
                strangers,
                tls=tls if is_encrypted else None,
                within=gateway.HANDSHAKE,
            )
        )
    return found


def _figures(figures: SmtpFigures) -> Iterator[GatewayFigure]:
    """For the terminal's metrics."""
    yield GatewayFigure("landbridge_smtp_stored", "mails stored", {}, figures.stored)
    yield GatewayFigure("landbridge_smtp_refused", "mails and recipients refused", {}, figures.refused)
    yield GatewayFigure("landbridge_smtp_bounces", "reports of mails that came back", {}, figures.bounces)
