"""Mail and SMS from the command line, sent and taken by ``landbridge up``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import landbridge
from landbridge.testing.sms_provider import SmsProvider
from tests.cli.conftest import Place, until
from tests.ports import free_port


@contextmanager
def providing() -> Iterator[SmsProvider]:
    """A provider of SMS in a thread of its own."""
    loop, provider = asyncio.new_event_loop(), SmsProvider()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(provider.__aenter__(), loop).result()
        try:
            yield provider
        finally:
            asyncio.run_coroutine_threadsafe(provider.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_all_that_can_be_done_with_mail(tmp_path: Path) -> None:
    """A bus that mails to itself."""
    place, port, secret = Place(tmp_path), free_port(), tmp_path / "password"
    smtp = ("--smtp", str(port), "--smtp-domain", "bus.example")
    with place.up("--allow-outgoing", "127.0.0.0/8", "--http-port", "0", *smtp) as up:
        assert up.ready["smtp"] == f"smtp://127.0.0.1:{port} for TOPIC@bus.example"
        for topic in ("alerts", "inbox"):
            assert place.call("topic", "create", topic).status == 0
        made = place.call("service", "register", "mailer", "--scope", "publish:inbox", "--json").json
        secret.write_text(made["credential"] + "\n")
        mail = ("alerts", "ops")
        to = ["--server", f"smtp+plain://127.0.0.1:{port}", "--from-address", "bus@bus.example"]
        to += ["--to", "inbox+content@bus.example", "--user", "mailer", "--password-file", str(secret)]
        assert place.call("mail", "create", *mail, *to, "--subject", "{{ payload.n }}").status == 0
        assert place.call("publish", "alerts", '{"n": 1}').status == 0
        until(lambda: place.call("mail", "show", *mail, "--json").json["delivered"] == 1)
        [read] = place.call("subscribe", "inbox", "--from", "earliest", "--count", "1", "--json").lines
        assert (read["payload"].strip(), read["headers"]["mail-subject"]) == ('{"n": 1}', "1")
        shown = place.call("mail", "show", *mail).out
        assert made["credential"] not in shown
        assert "inbox+content@bus.example" in shown
        tested = place.call("mail", "test", *mail, "--json").json
        assert tested["attempt"]["status"] == 250
        assert "delivered" in place.call("mail", "test", *mail).out
        assert place.call("mail", "update", *mail, "--digest-every", "1h", "--digest-most", "2").status == 0
        assert "every 3600 s, or 2 messages" in place.call("mail", "show", *mail).out
        assert place.call("mail", "pause", *mail, "--note", "moving").status == 0
        assert "moving" in place.call("mail", "show", *mail).out
        assert place.call("mail", "resume", *mail).status == 0
        assert "sends 1 message again" in place.call("mail", "replay", *mail, "--first", "0").out
        assert "ops" in place.call("mail", "list").out
        assert place.call("mail", "create", *mail, *to).status == landbridge.errors.OutletExists.exit_status
        assert place.call("mail", "update", *mail).status == 2
        assert place.call("mail", "delete", *mail).status == 0
        unknown = place.call("mail", "show", *mail)
        assert unknown.status == landbridge.errors.UnknownOutlet.exit_status
        # The standard library's client, too.
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.login("mailer", made["credential"])
            client.sendmail("a@b.example", ["inbox@bus.example"], "Subject: hi\r\n\r\nthere\r\n")
            with contextlib.suppress(smtplib.SMTPRecipientsRefused):
                client.sendmail("a@b.example", ["elsewhere@example.com"], "Subject: hi\r\n\r\nthere\r\n")
                raise AssertionError("it was relayed")
    refused = place.call("up", "--smtps", "0", "--http-port", "0", "--port", "0")
    assert "--tls-cert" in refused.err


def test_all_that_can_be_done_with_sms(tmp_path: Path) -> None:
    place, secret, profile = Place(tmp_path), tmp_path / "secret", tmp_path / "profile.json"
    http = ("--allow-outgoing", "127.0.0.0/8", "--http-port", str(free_port()))
    with place.up(*http) as up, providing() as provider:
        secret.write_text(provider.secret)
        profile.write_text(json.dumps({"url": provider.url}))
        assert place.call("topic", "create", "alerts").status == 0
        sms = ("alerts", "oncall")
        account = (
            "--account",
            provider.account,
            "--secret-file",
            str(secret),
            "--from-number",
            "+15550000001",
        )
        how = ("--to", "+15550000002", "--profile", str(profile), "--per-day", "5", "--rate", "100")
        back = ("--receipts", "sms.receipts", "--incoming", "sms.in", "--reached-at", up.ready["http"])
        assert place.call("sms", "create", *sms, *account, *how, *back).status == 0
        assert place.call("publish", "alerts", "on fire").status == 0
        until(lambda: provider.callbacks == [204, 204])
        assert [each.body for each in provider.sent] == ["on fire"]
        receipts = place.call(
            "subscribe", "sms.receipts", "--from", "earliest", "--count", "2", "--json"
        ).lines
        assert [each["headers"]["sms-status"] for each in receipts] == ["sent", "delivered"]
        shown = place.call("sms", "show", *sms, "--json").json
        assert (shown["today"], shown["options"]["per_day"]) == (1, 5)
        assert shown["incoming_url"] == f"{up.ready['http']}/v1/topics/alerts/sms/oncall/incoming"
        until(lambda: provider.sent[0].sid in place.call("sms", "show", *sms).out)
        assert place.call("sms", "update", *sms, "--per-day", "0", "--match-key", "x*").status == 0
        assert place.call("sms", "show", *sms, "--json").json["options"]["per_day"] is None
        assert place.call("sms", "test", *sms, "--json").json["attempt"]["status"] == 201
        assert "oncall" in place.call("sms", "list").out
        missing = place.call("sms", "update", *sms, "--secret-file", str(tmp_path / "none"))
        assert "can't read the secret" in missing.err
        assert place.call("sms", "delete", *sms).status == 0
