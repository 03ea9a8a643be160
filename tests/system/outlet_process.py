"""A terminal that sends mails and SMS, and takes mails, to be killed meanwhile: python outlet_process.py
DATABASE PORT SMTP_PORT.

Prints its token when it is ready. It doesn't wait long before it tries again."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

from landbridge.broker.server import Terminal
from landbridge.core.outlet import outlet
from landbridge.gateways import outlets as gateway
from landbridge.node.assembly import dial_to
from landbridge.node.listening import Endpoint
from landbridge.node.mail import mails_of, taking_mail
from landbridge.node.plan import SmtpPlan
from landbridge.node.sms import sms_of
from landbridge.stores.journal.store import JournalStore

LOCAL = ["127.0.0.0/8"]


async def main(path: str, port: int, smtp_port: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    outlet.RETRIES = (0.02,) * len(outlet.RETRIES)  # type: ignore[assignment]
    outlet.OPEN_FOR = gateway.LOOK_EVERY = 0.02
    terminal = Terminal(JournalStore(path))
    await terminal.open()
    await terminal.listen("127.0.0.1", port)
    dial = dial_to(terminal)
    plan, here = SmtpPlan(port=smtp_port, domain="bus.example"), Endpoint("127.0.0.1")
    async with (
        mails_of(terminal, dial, LOCAL, "bus.example") as senders,
        sms_of(terminal, dial, LOCAL),
        taking_mail(terminal, dial, plan, here, None, senders),
    ):
        print(terminal.issue_token("test", ["admin"], 1e6), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
