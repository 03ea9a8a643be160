"""Feeds and subscriptions without I/O: what is asked, what is verified, what ends when."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from landbridge.core.time import SECOND
from landbridge.core.websub import feed as feeds
from landbridge.core.websub import subscription as core
from landbridge.core.websub.feed import FeedSource, FetchedPage, StoredFeed
from landbridge.core.websub.spec import FeedSpec
from landbridge.core.websub.subscription import HubRequest, StoredSubscription, SubscriptionIntent
from landbridge.errors import BadName, BadRequest

NOW = 1_800_000_000 * SECOND
BASE = "https://hub.example"
URL = f"{BASE}/v1/feeds/news"
CALLBACK = "https://reader.example/in?id=7"
FEED = StoredFeed(spec=FeedSpec(topic="news", base=BASE), owner="o", opened_at=1, id="first")


def form(**more: str) -> list[tuple[str, str]]:
    said = {"mode": "subscribe", "topic": URL, "callback": CALLBACK} | more
    return [(f"hub.{name}", value) for name, value in said.items()]


@pytest.mark.parametrize(
    "url", [URL[:-2] + "\r\nws", URL[:-2] + "\tws", URL[:-2] + ">ws", "\x01" + URL, " " + URL]
)
def test_a_url_that_does_not_fit_into_a_header_is_no_feeds(url: str) -> None:
    assert feeds.topic_of(URL) == "news"
    assert feeds.topic_of(url) == ""
    assert not feeds.is_its_url(FEED.spec, url, BASE)


# -- requests ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(), st.text())))
def test_parameters_that_nobody_knows_change_nothing(more: list[tuple[str, str]]) -> None:
    strange = [(name, value) for name, value in more if not name.startswith("hub.")]
    assert core.read_request([*strange, *form(), *strange]) == core.read_request(form())


@pytest.mark.parametrize(
    ("asked", "lease"),
    [("", core.LEASE), ("0", core.LEASE), ("1", 60), ("86400", 86400), ("9" * 20, 30 * 86400)],
)
def test_a_lease_is_within_bounds_and_never_for_ever(asked: str, lease: int) -> None:
    assert core.read_request(form(lease_seconds=asked)).lease == lease


@pytest.mark.parametrize(
    "pairs",
    [
        [], form(mode=""), form(mode="SUBSCRIBE"), [*form(), ("hub.topic", f"{URL}2")], form(callback="x"),
        [*form(), ("hub.callback", CALLBACK + "2")], form(lease_seconds="1.5"), form(lease_seconds="٣"),
        form(lease_seconds="9" * 21), form(secret="x" * 200), form(callback="http://u:p@a.example/"),
        form(callback=f"https://a.example/{'x' * 990}", topic=f"{BASE}/v1/feeds/{'é' * 300}"),
        [("hub.mode", "publish")], [("hub.mode", "publish"), *[("hub.url", str(n)) for n in range(11)]],
    ],
)  # fmt: skip
def test_what_is_no_request(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(BadRequest):
        core.read_request(pairs)


def test_a_ping_names_its_topics_in_any_of_the_usual_ways() -> None:
    pairs = [
        ("hub.mode", "publish"),
        ("hub.url", "a"),
        ("hub.topic", "b"),
        ("hub.url[]", "c"),
        ("hub.url", "a"),
    ]
    assert core.read_request(pairs).topics == ("a", "b", "c")


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=20), st.text(max_size=30))
def test_the_query_of_the_callback_stays_and_ours_can_be_read_back(own: str, challenge: str) -> None:
    callback = f"https://reader.example/in?id={own}&x=%2F" if own else "https://reader.example/in"
    url = core.verification_url(callback, "subscribe", URL, challenge, 77)
    assert url.startswith(callback)
    query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    wanted = [("hub.mode", "subscribe"), ("hub.topic", URL), ("hub.challenge", challenge)]
    assert query[-4:] == [*wanted, ("hub.lease_seconds", "77")]
    assert query[:-4] == ([("id", own), ("x", "/")] if own else [])


def test_the_signature_of_the_recommendation() -> None:
    # RFC 4231, test case 2.
    assert core.sign("Jefe", b"what do ya want for nothing?") == (
        "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


# -- feeds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        {"topic": "$bus"}, {"topic": "a b"}, {"topic": ""}, {"base": "ftp://a.example"}, {"base": "https://a/b"},
        {"base": "https://a.example/#x"}, {"source": "file:///etc/passwd"}, {"content_type": "a/b\r\nX: y"},
        {"source": "https://a.example/" + "x" * 500}, {"ordered": "yes"}, {"unknown": 1},
    ],
)  # fmt: skip
def test_wrong_options_of_a_feed(raw: dict[str, Any]) -> None:
    with pytest.raises((BadRequest, BadName)):
        feeds.feed_spec({"topic": "news", **raw})


def test_which_urls_are_a_feeds() -> None:
    spec = feeds.feed_spec(
        {"topic": "News.all", "base": f"{BASE}/", "source": "https://blog.example/feed?x=1"}
    )
    url = feeds.feed_url(spec.base, spec.topic)
    assert url == f"{BASE}/v1/feeds/News.all"
    for right in (url, "HTTPS://Hub.Example/v1/feeds/News.all", "https://blog.example/feed?x=1"):
        assert feeds.is_its_url(spec, right, "http://anything")
    for wrong in (
        f"{url}?a",
        f"{url}/",
        f"{url}#a",
        url.lower(),
        "https://blog.example/feed",
        "",
        "News.all",
    ):
        assert not feeds.is_its_url(spec, wrong, BASE)
    open_spec = FeedSpec(topic="news")
    assert feeds.is_its_url(open_spec, "http://localhost:7480/v1/feeds/news", "http://localhost:7480")
    assert not feeds.is_its_url(open_spec, "http://localhost:7480/v1/feeds/news", "http://other:7480")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ping", "ok", "same", "500", "none", "304"]),
            st.integers(0, 2000),
        ),
        max_size=30,
    )
)
def test_a_source_is_fetched_for_each_ping_and_published_where_it_has_changed(
    steps: list[tuple[str, int]],
) -> None:
    feed = StoredFeed(
        spec=FeedSpec(topic="news", source="https://b.example/"), owner="o", opened_at=1, id="first"
    )
    source, now, published, fetched_at = FeedSource(), NOW, [], []
    content, number = b"", 0
    for what, span in steps:
        now += span * SECOND
        if what == "ping":
            before = feed.pinged_at
            feed = feeds.ping(feed, now)
            assert feed.pinged_at > before
            continue
        due = feeds.fetch_due(feed, source, now)
        if due is None or due > now:
            continue
        fetched_at.append(now)
        if what == "ok":
            number += 1
            content = b"%d" % number
        page = {
            "ok": FetchedPage(200, content, "tag"),
            "same": FetchedPage(200, content),
            "304": FetchedPage(304),
            "500": FetchedPage(500),
            "none": FetchedPage(0, why="no answer"),
        }[what]
        source, body = feeds.after_fetch(feed, source, page, now)
        if body is not None:
            published.append(body)
        assert bool(source.trouble) == (what in ("500", "none"))
        if what not in ("500", "none"):
            assert feeds.fetch_due(feed, source, now) is None
    assert len(published) == len(set(published))
    assert published[-1:] == ([content] if number or published else [])
    for first, second in pairwise(fetched_at):
        assert second - first >= feeds.FETCH_RETRIES[0] * SECOND


# -- a subscription ------------------------------------------------------------------------------------


@dataclass
class Oracle:
    """What W3C WebSub says of one subscription, in plain words."""

    lease_end: int = 0
    secret: str = ""

    def is_on(self, now: int) -> bool:
        return now < self.lease_end


class SubscriptionMachine(RuleBasedStateMachine):
    """Anybody asks for anything, callbacks answer as they like and when they like, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.feed: StoredFeed | None = FEED
        self.sub: StoredSubscription | None = None
        self.oracle = Oracle()
        #: Verifications under way: the intent as it was when the request was sent.
        self.under_way: list[SubscriptionIntent] = []
        self.number = 0

    @rule(
        mode=st.sampled_from(["subscribe", "unsubscribe"]),
        lease=st.sampled_from([60, 3600, core.LONGEST_LEASE]),
    )
    def ask(self, mode: Any, lease: int) -> None:
        if self.feed is None or (self.sub is None and mode == "unsubscribe"):
            return  # the operation refuses
        if self.sub is not None and (self.sub.ending or self.sub.feed != self.feed.id):
            return
        self.number += 1
        request = HubRequest(mode, CALLBACK, (URL,), lease, f"secret-{self.number}")
        before = None if self.sub is None else self.sub.terms
        self.sub = core.ask(self.sub, self.feed, request, BASE, self.now)
        assert self.sub.terms == before

    @rule(
        mode=st.sampled_from(["subscribe", "subscribe", "unsubscribe"]),
        lease=st.sampled_from([60, 3600]),
        status=st.sampled_from([200, 200, 204, 301, 404, 503]),
    )
    def ask_and_answer(self, mode: Any, lease: int, status: int) -> None:
        """With nothing in between, as it mostly is."""
        self.ask(mode, lease)
        self.send()
        if self.under_way:
            self.answer(len(self.under_way) - 1, status, True)

    @rule()
    def send(self) -> None:
        if self.sub is None or self.sub.intent is None:
            return
        step = core.next_step(self.sub, self.feed, self.now)
        if step.what == "verify" and step.at <= self.now and len(self.under_way) < 3:
            assert self.sub is not None
            assert self.sub.intent is not None
            self.under_way.append(self.sub.intent)

    @rule(
        index=st.integers(0, 2),
        status=st.sampled_from([0, 200, 204, 299, 301, 404, 410, 429, 500, 503]),
        echoes=st.booleans(),
    )
    def answer(self, index: int, status: int, echoes: bool) -> None:
        if self.sub is None or not self.under_way:
            return
        intent = self.under_way.pop(index % len(self.under_way))
        before = self.sub
        body = b"challenge" if echoes else b"challenge "
        self.sub = core.after_verification(before, intent, status, body, "challenge", self.now)
        is_current = before.intent is not None and before.intent.asked_at == intent.asked_at
        if is_current and before.ending is None and 200 <= status < 300 and echoes:
            is_open = self.feed is not None and self.feed.id == before.feed
            self.oracle = Oracle()
            if intent.mode == "subscribe" and is_open:  # the feed may have been closed meanwhile
                self.oracle = Oracle(self.now + intent.lease * SECOND, intent.secret)
        else:
            assert self.sub.terms == before.terms
        if self.sub.intent is not None and self.sub.intent.asked_at == intent.asked_at:
            assert status in (0, 429) or status >= 500 or not is_current

    @rule(seconds=st.sampled_from([0, 1, 5, 60, 600, 3600, 86400]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(chance=st.integers(0, 4))
    def close_and_open(self, chance: int) -> None:
        if chance:
            return
        self.number += 1
        again = replace(FEED, opened_at=self.now, id=f"feed-{self.number}")
        self.feed = None if self.feed else again
        self.oracle = Oracle()

    @rule()
    def end(self) -> None:
        if self.sub is None:
            return
        step = core.next_step(self.sub, self.feed, self.now)
        if step.what == "end":
            assert not self.oracle.is_on(self.now)
            self.sub = None
            self.under_way.clear()

    @invariant()
    def messages_are_sent_exactly_while_a_verified_lease_lasts(self) -> None:
        is_active = self.sub is not None and core.is_active(self.sub, self.feed, self.now)
        assert is_active == self.oracle.is_on(self.now)
        if is_active:
            assert self.sub is not None
            assert self.feed is not None
            target = core.target("id", self.sub, self.feed)
            assert (target.secret, target.spec.url) == (self.oracle.secret, CALLBACK)

    @invariant()
    def something_is_always_to_be_done_and_none_lasts_for_ever(self) -> None:
        if self.sub is None:
            return
        step = core.next_step(self.sub, self.feed, self.now)
        assert step.at - self.now <= core.LONGEST_LEASE * SECOND
        if self.sub.intent is not None:
            assert self.sub.intent.tries <= len(core.VERIFY_RETRIES)


@pytest.mark.parametrize("mode", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize("status", [0, 199, 200, 204, 299, 300, 301, 302, 307, 308, 400, 404, 410, 429, 500])
@pytest.mark.parametrize("body", [b"challenge", b"challenge\n", b"", b"CHALLENGE"])
def test_only_a_success_with_the_challenge_itself_confirms(mode: Any, status: int, body: bytes) -> None:
    lasting = core.SubscriptionTerms(lease=60, verified_at=NOW, expires_at=NOW + 60 * SECOND)
    request = HubRequest(mode, CALLBACK, (URL,), 3600, "new")
    sub = core.ask(None, FEED, request, BASE, NOW)
    sub = replace(sub, terms=lasting)
    assert sub.intent is not None
    after = core.after_verification(sub, sub.intent, status, body, "challenge", NOW)
    if status in (200, 204, 299) and body == b"challenge":
        assert after.intent is None
        assert (after.ending == "unsubscribed") == (mode == "unsubscribe")
        assert (after.terms is None) == (mode == "unsubscribe")
    else:
        assert (after.terms, after.ending) == (lasting, None)
        assert (after.intent is not None) == (status in (0, 429, 500))
        assert (after.refused_at, bool(after.refused_why)) == (NOW, True)


def test_a_verification_without_an_answer_is_told_until_one_is_confirmed() -> None:
    sub = core.ask(None, FEED, HubRequest("subscribe", CALLBACK, (URL,), 3600, ""), BASE, NOW)
    for tries, told in enumerate(["1 verification", "2 verifications"], 1):
        assert sub.intent is not None
        sub = core.after_verification(sub, sub.intent, 0, b"", "c", NOW + tries, "no route " * 100)
        assert sub.refused_why.startswith(f"no answer to {told}: no route no route")
        assert len(sub.refused_why) < 400
        assert sub.refused_at == NOW + tries
    assert sub.intent is not None
    granted = core.after_verification(sub, sub.intent, 200, b"c", "c", NOW + 9)
    assert (granted.refused_at, granted.refused_why) == (0, "")


def test_an_answer_to_what_was_asked_before_says_nothing_of_what_is_asked_now() -> None:
    first = core.ask(None, FEED, HubRequest("subscribe", CALLBACK, (URL,), 60, "first"), BASE, NOW)
    # At the same moment, and after the clock was set back.
    for now in (NOW, NOW - 5):
        second = core.ask(first, FEED, HubRequest("subscribe", CALLBACK, (URL,), 60, "second"), BASE, now)
        assert first.intent is not None
        assert core.after_verification(second, first.intent, 200, b"c", "c", now) == second
        dropped = replace(first, intent=None)
        third = core.ask(dropped, FEED, HubRequest("subscribe", CALLBACK, (URL,), 60, "third"), BASE, now)
        assert core.after_verification(third, first.intent, 200, b"c", "c", now) == third


TestSubscription = SubscriptionMachine.TestCase
TestSubscription.settings = settings(max_examples=4 * (settings.default or settings()).max_examples)


@given(st.integers(0, 1000), st.integers(0, 50_000), st.integers(1, 100), st.integers(1, 10_000_000))
def test_subscribers_hold_no_publisher_up(first: int, count: int, each: int, max_backlog: int) -> None:
    end, size = first + count, count * each
    floor = core.least_floor(first, end, size, max_backlog)
    assert first <= floor <= end
    assert end - floor <= core.MOST_BEHIND
    if 2 * size >= max_backlog:
        assert 4 * (end - floor) * each <= max_backlog
    elif count <= core.MOST_BEHIND:
        assert floor == first


def test_names_differ_by_callback_and_feed() -> None:
    names = {core.subscription_id(a, b) for a in ("x", "y") for b in ("x", "y")}
    assert len(names) == 4
    assert core.subscription_id(CALLBACK, URL) == core.subscription_id(CALLBACK, URL)


def test_a_clock_that_is_set_back_by_days_delays_no_verification_and_no_fetch_for_so_long() -> None:
    ahead = NOW + 30 * 86400 * SECOND
    asked = core.ask(None, FEED, core.read_request(form()), BASE, ahead)
    assert asked.intent is not None
    waiting = core.after_verification(asked, asked.intent, 500, b"", "c", ahead)
    assert core.next_step(waiting, FEED, ahead).at == ahead + 5 * SECOND
    assert core.next_step(waiting, FEED, NOW).at == NOW
    feed = replace(FEED, spec=replace(FEED.spec, source="https://blog.example/"))
    source, _ = feeds.after_fetch(feeds.ping(feed, ahead), FeedSource(), FetchedPage(500), ahead)
    pinged = feeds.ping(feed, ahead)
    assert feeds.fetch_due(pinged, source, ahead) == ahead + 5 * SECOND
    assert feeds.fetch_due(pinged, source, NOW) == 0
