"""Mail and SMS of a real process that is killed while it sends and takes: every message at least once, every
mail that was answered with 250 stored once, and no day that costs more than its budget."""

from __future__ import annotations

import random
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import aiosmtplib
import pytest

import landbridge
from landbridge.core.sms.spec import SmsProfile
from landbridge.testing.sms_provider import LOSE, TAKE, SmsProvider
from tests.mail_receiver import LOSE as LOSE_MAIL
from tests.mail_receiver import MailReceiver
from tests.ports import free_port
from tests.system.test_promise import end, line_of, start
from tests.waiting import eventually

KILLS, MESSAGES = 4, 20
ALL = {str(number) for number in range(MESSAGES * (KILLS + 1))}
BUDGET = 10_000


def _mailed(receiver: MailReceiver) -> set[str]:
    return set(receiver.texts)


def _has_sent(provider: SmsProvider, wanted: int) -> bool:
    return len(provider.sent) >= wanted


def _is_complete(receiver: MailReceiver, provider: SmsProvider) -> bool:
    return _mailed(receiver) == ALL == {sms.body for sms in provider.sent}


@pytest.mark.slow
async def test_everything_is_sent_at_least_once_whatever_is_killed_when(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(7)
    receiver = MailReceiver(lambda number: LOSE_MAIL if chance.random() < 0.1 else "250 OK")
    provider = SmsProvider(answer=lambda number: LOSE if chance.random() < 0.1 else TAKE)
    async with receiver, provider:
        for life in range(KILLS + 1):
            process = await start("outlet_process.py", tmp_path / "bus", port, free_port())
            try:
                token = await line_of(process)
                async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                    if not life:
                        await _create(bus, receiver, provider)
                    wanted = len(provider.sent) + chance.randint(1, MESSAGES)
                    for number in range(MESSAGES):
                        await bus.publish("alerts", str(life * MESSAGES + number).encode())
                    if life < KILLS:
                        await eventually(partial(_has_sent, provider, wanted), f"{wanted} SMS")
                        process.kill()
                        continue
                    await eventually(partial(_is_complete, receiver, provider), "every message was sent")
                    shown = await bus.sms.show("alerts", "sms")
                    # Counted on disk before it is sent: never less than was sent.
                    assert len(provider.sent) <= shown.this_month <= BUDGET
            finally:
                await end(process)
    ids: dict[str, str] = {}
    for mail, text in zip(receiver.mails, receiver.texts, strict=True):
        assert ids.setdefault(text, mail["Message-ID"]) == mail["Message-ID"]
    assert len(set(ids.values())) == len(ALL)


async def _create(bus: Any, receiver: MailReceiver, provider: SmsProvider) -> None:
    await bus.topics.create("alerts")
    await bus.mails.create(
        "alerts", "mail", server=receiver.url, sender="bus@example.com", to=("ops@example.com",)
    )
    await bus.sms.create(
        "alerts",
        "sms",
        account=provider.account,
        secret=provider.secret,
        sender="+15550000001",
        to="+15550000002",
        per_day=BUDGET,
        profile=SmsProfile(url=provider.url),
    )


@pytest.mark.slow
async def test_a_mail_that_was_answered_with_250_is_stored_once(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(5)
    answered: set[int] = set()
    for life in range(KILLS + 1):
        smtp = free_port()
        process = await start("outlet_process.py", tmp_path / "bus", port, smtp)
        try:
            token = await line_of(process)
            async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                if not life:
                    await bus.topics.create("orders")
                # What had no answer is sent again, by the same id.
                numbers = [number for number in range((life + 1) * MESSAGES) if number not in answered]
                until = chance.randint(1, len(numbers) - 1) if life < KILLS else len(numbers)
                client = aiosmtplib.SMTP(
                    hostname="127.0.0.1", port=smtp, username="test", password=token, start_tls=False
                )
                try:
                    async with client:
                        for place, number in enumerate(numbers):
                            if place == until:
                                process.kill()  # the mail is perhaps stored, and nobody hears of it
                            await client.send_message(_mail(number))
                            answered.add(number)
                except (aiosmtplib.SMTPException, OSError):
                    assert life < KILLS
                if life == KILLS:
                    stored = await bus.topics.show("orders")
                    assert answered == set(range((KILLS + 1) * MESSAGES))
                    assert stored.end == len(answered)
        finally:
            await end(process)


def _mail(number: int) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Message-ID"] = (
        "a@b.example",
        "orders@bus.example",
        f"<{number}@b.example>",
    )
    mail.set_content(str(number))
    return mail
