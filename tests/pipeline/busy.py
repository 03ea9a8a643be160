"""A terminal where something has happened, for the tests of what its status log says."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from landbridge.errors import UnknownTopic
from tests.pipeline.site import Site


def keep_busy(site: Site) -> Site:
    """A topic of 50 messages, with a group that takes 30 of them and buries 2 of those."""
    site.publish(50)
    with site.bus.subscribe(site.topic(), group="billing") as messages:
        for number, message in enumerate(messages, 1):
            message.bury("broken") if number <= 2 else message.ack(wait=True)
            if number == 30:
                break
    settled(site)
    return site


def settled(site: Site) -> None:
    """Until the status log has what happened: the terminal writes it once a second."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        told = Counter(e["event"] for e in status_of(site) for _ in range(e.get("messages", 0)))
        if told["ack"] == 28 and told["bury"] == 2:
            return
        time.sleep(0.05)
    raise AssertionError(told)


def status_of(site: Site) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    offset = 0
    try:
        while batches := site.bus.fetch("$status", offset).batches:
            for each in batches:
                events += [json.loads(payload) for payload in each.batch.payloads()]
                offset = each.end
    except UnknownTopic:  # nothing has been written yet
        pass
    return [event for event in events if event.get("topic") == site.topic()]
