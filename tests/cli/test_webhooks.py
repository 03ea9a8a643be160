"""Webhooks from the command line, sent by ``landbridge up``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import landbridge
from tests.cli.conftest import Place, until
from tests.ports import free_port
from tests.receivers import Receiver


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver in a thread of its own."""
    loop, receiver = asyncio.new_event_loop(), Receiver()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(receiver.__aenter__(), loop).result()
        try:
            yield receiver
        finally:
            asyncio.run_coroutine_threadsafe(receiver.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_all_that_can_be_done_with_a_webhook(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.up("--allow-outgoing", "127.0.0.0/8", "--http-port", "0") as up, receiving() as receiver:
        assert up.ready
        webhook = ("orders", "shop")
        assert place.call("topic", "create", "orders").status == 0
        assert place.call("webhook", "list", "--json").json == []
        made = place.call("webhook", "create", *webhook, receiver.url, "--ordered", "--json").json
        assert made["secret"].startswith("whsec_")
        assert "was there already" in place.call("webhook", "create", *webhook, receiver.url, "--ordered").out
        assert made["secret"] not in place.call("webhook", "show", *webhook).out
        assert place.call("publish", "orders", '{"number": 1}').status == 0
        until(lambda: receiver.requests)
        receiver.requests[0].verify(made["secret"])
        tested = place.call("webhook", "test", *webhook, "--json").json
        assert (tested["attempt"]["status"], tested["attempt"]["number"]) == (204, 1)
        assert "delivered" in place.call("webhook", "test", *webhook).out
        lost = ("ordes", "lost")
        made_too = place.call("webhook", "create", *lost, f"http://127.0.0.1:{free_port()}/")
        assert "made the topic ordes; did you mean orders?" in made_too.err
        untaken = place.call("webhook", "test", *lost)
        assert (untaken.status, "failed" in untaken.out) == (70, True)
        assert place.call("webhook", "delete", *lost).status == 0
        until(lambda: place.call("webhook", "show", *webhook, "--json").json["delivered"] == 1)
        assert "204" in place.call("webhook", "show", *webhook).out
        again = place.call("webhook", "replay", *webhook, "--first", "0", "--end", "1")
        assert "sends 1 message again" in again.out
        until(lambda: receiver.bodies.count(b'{"number": 1}') == 2)
        assert "sends 1 message again" in place.call("webhook", "replay", *webhook, "--from", "1h ago").out
        assert place.call("webhook", "pause", *webhook, "--note", "moving").status == 0
        assert "moving" in place.call("webhook", "show", *webhook).out
        assert place.call("webhook", "list", "orders", "--json").json[0]["state"] == "paused"
        assert place.call("webhook", "resume", *webhook).status == 0
        rotated = place.call("webhook", "rotate", *webhook, "--overlap", "1h", "--json").json
        assert rotated["secret"] != made["secret"]
        fresh = place.call("webhook", "rotate", *webhook).out
        assert "has a new secret" in fresh
        assert "whsec_" in fresh
        asymmetric = place.call("webhook", "rotate", *webhook, "--asymmetric")
        assert "whpk_" in asymmetric.out
        assert "whpk_" in place.call("webhook", "show", *webhook).out
        assert place.call("webhook", "update", *webhook, "--unordered", "--rate", "5").status == 0
        assert place.call("webhook", "update", *webhook).status == 2
        options = place.call("webhook", "show", *webhook, "--json").json["options"]
        assert (options["ordered"], options["rate"]) == (False, 5.0)
        for wrong in ((), ("--first", "0", "--from", "1h ago")):
            assert place.call("webhook", "replay", *webhook, *wrong).status == 2
        both = place.call("webhook", "replay", *webhook, "--first", "0", "--until", "1h ago")
        assert both.status == landbridge.errors.BadRequest.exit_status
        assert place.call("webhook", "delete", *webhook).status == 0
        gone = place.call("webhook", "show", *webhook, "--json")
        assert (gone.status, gone.error["code"]) == (92, "unknown_webhook")
