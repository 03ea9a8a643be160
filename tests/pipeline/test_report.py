"""The report: its figures against a plain sum, its page as a browser would take it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from landbridge.core import latency
from landbridge.core.time import SECOND
from landbridge.pipeline.jobs.activity.minutes import COUNTS, HISTOGRAMS
from landbridge.pipeline.jobs.activity.page import page
from landbridge.pipeline.jobs.activity.report import MOST_STEPS, ActivityReport, step_for, summarise
from tests.pipeline.busy import keep_busy
from tests.pipeline.site import Site

BEGIN = 1_800_000_000_000_000
MINUTE = 60 * SECOND
HOSTILE = [
    '<script>alert("1")</script>',
    "</title><img src=x onerror=alert(1)>",
    "a&b'\"\x00\u202e",
    "<b>x</b>",
]


def row(step: int, topic: str, group: str, role: str, who: str, **fields: Any) -> dict[str, Any]:
    blank: dict[str, Any] = (
        dict.fromkeys(COUNTS, 0) | {name: {} for name in HISTOGRAMS} | {"causes": {}, "lag": None}
    )
    keys = {"step": step, "topic": topic, "group": group, "role": role, "who": who}
    return blank | keys | fields


def rows(names: list[str], seed: int = 1) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    made = []
    for minute in range(10):
        at = BEGIN + minute * MINUTE
        for topic in names:
            count = draw.randrange(1, 999)
            waited = {latency.bucket(draw.randrange(1, 10**7)): count}
            made += [
                row(
                    at, topic, "", "producer", draw.choice(names), published=count, published_bytes=9 * count
                ),
                row(at, topic, topic, "consumer", draw.choice(names), delivered=count, waiting=waited),
                row(at, topic, topic, "consumer", "slow", acked=count, latency={200 + minute: count}),
                row(at, topic, topic, "", "", buried=1, lag=minute, causes={f"bury: {topic}": 1}),
            ]
        made.append(row(at, "", "", "", "stranger", refused=2, causes={"refuse: forbidden": 2}))
    return made


def summary(names: list[str], **lags: Any) -> ActivityReport:
    return summarise(rows(names), BEGIN, BEGIN + 9 * MINUTE, 60, **(lags or {"lags": {}}))


def test_figures_are_the_sums_of_their_rows() -> None:
    names = ["orders", "bills"]
    report = summary(names)
    for name in COUNTS:
        assert getattr(report.total, name) == sum(each[name] for each in rows(names))
    for topic in names:
        mine = [each for each in rows(names) if each["topic"] == topic]
        assert report.topics[topic].published == sum(each["published"] for each in mine)
        waited = sum((Counter(each["waiting"]) for each in mine), Counter())
        assert report.topics[topic].waiting == waited
        ends = [each for each in report.slowest() if each[0] == topic]
        assert ends[0] == (topic, topic, "slow")  # the others ack nothing
    assert len(report.steps) == 10
    assert report.total.failures == 10 * 2 + 20 * 1
    assert report.total.causes["refuse: forbidden"] == 20
    assert report.lag == 2 * 9  # as it was last seen
    assert summary(names, lags={("orders", "orders"): 4}).lag == 4  # as it is now
    assert report.document()["total"]["latency_ms"]["p50"] == pytest.approx(
        (report.total.spans("latency")[0] or 0), abs=0
    )


@pytest.mark.parametrize("minutes", [1, 120, 121, 1000, 10_000, 100_000])
def test_steps_are_few(minutes: int) -> None:
    assert minutes * 60 / step_for(BEGIN, BEGIN + minutes * MINUTE) <= MOST_STEPS


class Reader(HTMLParser):
    """Fails where tags don't match; keeps what a browser would show and load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.shown: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def test_page_is_whole_and_loads_nothing() -> None:
    text = page(summary(["orders", "bills"]), source="the status log", made_at=BEGIN)
    read = Reader(text)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    names = {name for name, _ in read.attributes}
    assert not names & {"src", "href", "xlink:href", "action", "srcset"}
    assert not [name for name in names if name.startswith("on")]
    assert not read.tags.keys() & {"script", "iframe", "link", "img", "object", "embed"}
    plots = [value for name, value in read.attributes if name == "class" and value == "plot"]
    assert len(plots) == read.tags["details"] == 3  # each with its numbers beside it
    assert read.tags["svg"] == [name for name, _ in read.attributes].count("viewbox")
    assert read.shown.count("orders") >= 4


def test_names_of_users_are_only_shown() -> None:
    plain = Reader(page(summary(["a", "b", "c", "d"]), source="x", made_at=BEGIN))
    hostile = Reader(page(summary(HOSTILE), source=HOSTILE[0], made_at=BEGIN))
    assert hostile.tags == plain.tags
    assert {name for name, _ in hostile.attributes} == {name for name, _ in plain.attributes}
    for name in (HOSTILE[0], HOSTILE[1], HOSTILE[3]):
        assert name in hostile.shown
    assert not any(sign in text for sign in "\x00\u202e" for text in hostile.shown)


@pytest.mark.parametrize("names", [[], [f"t{number}" for number in range(80)]])
def test_nothing_and_a_lot_are_pages_too(names: list[str]) -> None:
    read = Reader(page(summary(names), source="x", made_at=BEGIN))
    assert ("Nothing was published" in "".join(read.shown)) == (not names)
    if names:
        assert "and 30 more" in read.shown
        assert "73 others" in read.shown


def test_a_time_without_anything_is_a_page() -> None:
    Reader(page(summarise([], BEGIN, BEGIN, 60, {}), source="x", made_at=BEGIN))


@pytest.fixture
def busy(site: Site) -> Site:
    return keep_busy(site)


def command(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LANDBRIDGE_URL": site.url, "LANDBRIDGE_TOKEN": site.token}
    line = [sys.executable, "-m", "landbridge", "pipeline", *arguments, "--conf", "spark.driver.memory=512m"]
    return subprocess.run(
        line, cwd=site.folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_from_the_log_and_from_a_table_say_the_same(busy: Site) -> None:
    direct = command(busy, "report", "--json", "--since", "1h")
    assert direct.returncode == 0, direct.stderr
    said = json.loads(direct.stdout)
    mine = next(each for each in said["topics"] if each["topic"] == busy.topic())
    assert (mine["published"], mine["acked"], mine["buried"]) == (50, 28, 2)
    assert mine["latency_ms"]["p50"] > 0
    group = next(each for each in said["groups"] if each["topic"] == busy.topic())
    assert (group["group"], group["lag"]) == ("billing", 20)
    assert busy.topic() in Reader((busy.folder / "report.html").read_text()).shown

    ran = command(
        busy, "run", "activity", "--to", "minutes", "--checkpoint", "checkpoint", "--once", "--json"
    )
    assert ran.returncode == 0, ran.stderr
    from_table = command(busy, "report", "minutes", "--out", "table.html")
    assert from_table.returncode == 0, from_table.stderr
    assert busy.topic() in from_table.stdout
    assert Path(busy.folder, "table.html").exists()

    missing = command(busy, "report", "nowhere", "--json")
    assert missing.returncode == 18
    assert json.loads(missing.stderr.splitlines()[-1])["error"]["code"] == "bad_option"
