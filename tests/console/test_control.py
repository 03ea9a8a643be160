"""The pages of the console by which services, schedules, rules, webhooks, feeds, tokens and limits are seen
and changed, over HTTP as the console's module asks."""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from landbridge.core.cluster.table import ClusterTable, NodeRecord
from tests.contracts.web import Web, web


class Browser:
    """A browser that has signed in, and sends forms."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._csrf = ""

    async def sign_in(self, token: str) -> "Browser":
        answer = await self._client.post("/console/links", headers={"authorization": f"Bearer {token}"})
        code = answer.json()["path"].partition("code=")[2]
        signed = await self._client.post("/console/sign-in", data={"code": code})
        assert signed.status_code == 303, signed.text
        return self

    async def see(self, path: str) -> str:
        """The text of a page, without its tags."""
        html = await self.raw(path)
        if found := re.search(r'name="csrf" value="([^"]+)"', html):
            self._csrf = found[1]
        main = html[html.index("<main") :]
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", main))

    async def raw(self, path: str) -> str:
        """The HTML of a page."""
        answer = await self._client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def act(self, action: str, /, **fields: str) -> dict[str, Any]:
        """What the console answers its module when a form is sent, confirmed where that is asked for."""
        if not self._csrf:
            await self.see("/console/topics")
        found = await self._send(action, fields)
        if found["outcome"] == "confirm":
            found = await self._send(action, fields | {"confirmed": "yes"}) | {"asked": found["html"]}
        return found

    async def _send(self, action: str, fields: dict[str, str]) -> dict[str, Any]:
        data = {"csrf": self._csrf, "back": "/", **fields}
        answer = await self._client.post(
            f"/console/actions/{action}", data=data, headers={"console-module": "1"}
        )
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
async def site() -> AsyncIterator[Web]:
    async with web(console=True) as found:
        yield found


@pytest.fixture
async def admin(site: Web) -> AsyncIterator[Browser]:
    async with httpx.AsyncClient(base_url=site.url, headers={"origin": site.url}) as client:
        yield await Browser(client).sign_in(site.token("admin", subject="admin"))


@pytest.fixture
async def viewer(site: Web) -> AsyncIterator[Browser]:
    async with httpx.AsyncClient(base_url=site.url, headers={"origin": site.url}) as client:
        yield await Browser(client).sign_in(site.token("observe", subject="viewer"))


async def test_schedule_from_its_making_to_its_removal(site: Web, admin: Browser):
    made = await admin.act(
        "schedule.create", topic="reports", name="nightly", when="30 2 * * *", zone="Europe/Berlin",
        catch_up="5m", overlap="buffer-one", payload='{"a": 1}',
    )  # fmt: skip
    assert made == {
        "outcome": "done",
        "text": "The schedule nightly is there",
        "to": "/console/topics/reports/schedules/nightly",
        "reload": False,
    }
    spec = (await site.bus.schedules.show("reports", "nightly")).options
    assert (spec.catch_up, spec.overlap, spec.payload) == (300.0, "buffer-one", '{"a": 1}')
    assert "30 2 * * *" in await admin.see("/console/schedules")
    assert "5 min" in await admin.see("/console/topics/reports/schedules/nightly")
    await admin.act("schedule.pause", topic="reports", name="nightly", note="holiday")
    assert "holiday" in await admin.see("/console/topics/reports/schedules/nightly")
    await admin.act("schedule.resume", topic="reports", name="nightly")
    await admin.act("schedule.update", topic="reports", name="nightly", when="@daily")
    shown = await site.bus.schedules.show("reports", "nightly")
    assert (shown.state, shown.when) == ("active", "@daily")
    removed = await admin.act("schedule.remove", topic="reports", name="nightly")
    assert "publishes nothing more" in removed["asked"]
    assert await site.bus.schedules.list() == []


async def test_backfill_says_what_it_publishes(site: Web, admin: Browser):
    await site.bus.schedules.create("reports", "daily", "@daily")
    filled = await admin.act("schedule.backfill", topic="reports", name="daily", begin="-3d", until="-1h")
    assert filled["text"].endswith("firings are published")
    refused = await admin.act("schedule.backfill", topic="reports", name="daily", begin="soon", until="-1h")
    assert refused["outcome"] == "refused"
    assert "not a moment" in refused["html"]


async def test_credential_is_shown_once(site: Web, admin: Browser):
    made = await admin.act("service.register", name="billing", scopes="subscribe:orders\npublish:bills")
    credential = re.search(r"lbsc1_\w+", made["html"])
    assert made["outcome"] == "shown"
    assert credential is not None
    assert credential[0] not in await admin.see("/console/services/billing")
    traded = await site.bus.services.token("billing", credential[0])
    assert set(traded.scopes) == {"subscribe:orders", "publish:bills"}
    rotated = await admin.act("service.rotate", name="billing", overlap="0s")
    assert "ends at once" in rotated["asked"]
    assert credential[0] not in rotated["html"]


async def test_service_is_paused_suspended_changed_and_removed(site: Web, admin: Browser):
    await site.bus.services.register("billing", scopes=["subscribe:orders"])
    await admin.act("service.pause", name="billing", note="upgrade")
    assert "upgrade" in await admin.see("/console/services/billing")
    await admin.act("service.unpause", name="billing")
    await admin.act("service.suspend", name="billing", note="stolen")
    assert (await site.bus.services.show("billing")).state == "suspended"
    assert "stolen" in await admin.see("/console/services/billing")
    await admin.act("service.resume", name="billing")
    await admin.act("service.update", name="billing", owner="team", scopes="subscribe:bills", description="")
    options = (await site.bus.services.show("billing")).options
    assert (options.owner, options.scopes) == ("team", ("subscribe:bills",))
    await admin.act("service.remove", name="billing")
    assert "billing" not in [service.name for service in await site.bus.services.list()]


async def test_rule_is_made_tested_and_deleted(site: Web, admin: Browser):
    made = await admin.act("rule.create", match='{"state": ["paid"]}', source="orders")
    path = made["to"]
    assert "paid" in await admin.see(path)
    test = "/console/rules-test?source=orders&payload="
    assert "chosen" in await admin.see(f"{test}%7B%22state%22%3A%22paid%22%7D")
    told = await admin.see(f"{test}%7B%22state%22%3A%22open%22%7D")
    assert "not chosen" in told
    assert "not JSON" in await admin.see(f"{test}x&match=%7Bbad")
    await admin.act("rule.delete", rule=path.rpartition("/")[2], force="true")
    assert await site.bus.rules.list() == []


async def test_webhook_is_made_tested_replayed_rotated_and_deleted(site: Web, admin: Browser):
    await site.bus.publish("orders", {"id": 1})
    made = await admin.act(
        "webhook.create", topic="orders", name="shop", url="https://example.com/hook", rate="2.5",
        ordered="true", start="latest", match='{"key": "eu-*"}',
    )  # fmt: skip
    assert "whsec_" in made["html"]
    spec = (await site.bus.webhooks.show("orders", "shop")).options
    assert (spec.rate, spec.ordered) == (2.5, True)
    await admin.act("webhook.pause", topic="orders", name="shop", note="quiet")
    shown = await admin.see("/console/topics/orders/webhooks/shop")
    assert "quiet" in shown
    assert "whsec_" not in shown
    replayed = await admin.act("webhook.replay", topic="orders", name="shop", first="0")
    assert "offset 0" in replayed["asked"]
    assert (await admin.act("webhook.replay", topic="orders", name="shop"))["outcome"] == "refused"
    assert "whsec_" in (await admin.act("webhook.rotate", topic="orders", name="shop", overlap="1h"))["html"]
    await admin.act(
        "webhook.update", topic="orders", name="shop", url="https://example.com/2", rate="", match=""
    )
    spec = (await site.bus.webhooks.show("orders", "shop")).options
    assert (spec.url, spec.rate, spec.match) == ("https://example.com/2", None, None)
    assert "https://example.com/2" in await admin.see("/console/webhooks")
    await admin.act("webhook.delete", topic="orders", name="shop")
    assert await site.bus.webhooks.list() == []


async def test_mail_outlet_from_its_making_to_its_deletion(site: Web, admin: Browser):
    made = await admin.act(
        "mail.create", topic="orders", name="team", server="smtps://mail.example:465", sender="bus@a.example",
        to="x@a.example\ny@a.example", subject="{{ topic }}", digest_every="10m", digest_most="5", user="u",
        password="hidden-word", ordered="false", html="false", rate="", match="",
    )  # fmt: skip
    assert made["to"] == "/console/topics/orders/mail/team"
    spec = (await site.bus.mails.show("orders", "team")).options
    assert (spec.to, spec.subject) == (("x@a.example", "y@a.example"), "{{ topic }}")
    assert spec.digest is not None
    assert (spec.digest.every, spec.digest.most) == (600.0, 5)
    shown = await admin.raw(made["to"])
    assert "y@a.example" in shown
    assert "hidden-word" not in shown
    await admin.act("mail.pause", topic="orders", name="team", note="quiet")
    assert "quiet" in await admin.see(made["to"])
    await admin.act(
        "mail.update", topic="orders", name="team", server="smtps://mail.example:465", sender="bus@a.example",
        to="z@a.example", rate="2",
    )  # fmt: skip
    spec = (await site.bus.mails.show("orders", "team")).options
    assert (spec.to, spec.digest, spec.rate, spec.user) == (("z@a.example",), None, 2.0, "u")
    assert "smtps://mail.example:465" in await admin.see("/console/mail")
    replayed = await admin.act("mail.replay", topic="orders", name="team", first="0")
    assert "mailed again" in replayed["asked"]
    await admin.act("mail.delete", topic="orders", name="team")
    assert await site.bus.mails.list() == []


async def test_sms_outlet_from_its_making_to_its_deletion(site: Web, admin: Browser):
    made = await admin.act(
        "sms.create", topic="orders", name="team", account="AC1", secret="hidden-word", sender="+15550000001",
        to="+15550000002", per_day="100", per_month="", receipts="", incoming="", rate="", match="",
        ordered="false",
    )  # fmt: skip
    spec = (await site.bus.sms.show("orders", "team")).options
    assert (spec.per_day, spec.per_month) == (100, None)
    shown = await admin.raw(made["to"])
    assert "0 of 100" in shown
    assert "hidden-word" not in shown
    await admin.act(
        "sms.update", topic="orders", name="team", account="AC1", sender="+15550000001", to="+15550000003",
    )  # fmt: skip
    spec = (await site.bus.sms.show("orders", "team")).options
    assert (spec.to, spec.per_day) == ("+15550000003", None)
    assert "AC1" in await admin.see("/console/sms")
    assert "charged again" in (await admin.act("sms.replay", topic="orders", name="team", first="0"))["asked"]
    await admin.act("sms.delete", topic="orders", name="team")
    assert await site.bus.sms.list() == []


async def test_feed_is_opened_after_a_warning_and_closed(site: Web, admin: Browser):
    opened = await admin.act("websub.open", topic="news")
    assert "without a token" in opened["asked"]
    assert "news" in await admin.see("/console/websub")
    await admin.act("websub.close", topic="news")
    assert await site.bus.websub.feeds() == []


async def test_token_is_made_listed_and_revoked(site: Web, admin: Browser):
    made = await admin.act("token.create", subject="shop", life="30m", scopes="publish:orders observe")
    assert made["outcome"] == "shown"
    (row,) = [row for row in await site.bus.tokens.list() if row.subject == "shop"]
    assert row.scopes == ["publish:orders", "observe"]
    assert row.id in await admin.see("/console/tokens")
    await admin.act("token.revoke", id=row.id)
    assert "revoked" in await admin.see("/console/tokens?subject=shop")


async def test_limit_is_set_and_reset(site: Web, admin: Browser):
    asked = (await admin.act("limits.set", limit="max_topics", value="9000"))["asked"]
    assert "becomes 9,000" in asked
    assert site.terminal.broker.limits.max_topics == 9000
    assert "9,000" in await admin.see("/console/limits")
    await admin.act("limits.reset", limit="max_topics")
    assert site.terminal.broker.limits.max_topics == 100_000
    assert (await admin.act("limits.set", limit="max_topics", value="many"))["outcome"] == "refused"


async def test_audit_log_is_read_backwards_by_page_and_by_operation(site: Web, admin: Browser):
    for number in range(130):
        await site.bus.topics.create(f"topic-{number}")
    newest = await admin.see("/console/audit")
    assert "topic-129" in newest
    assert "topic-5 " not in newest
    assert "Older" in newest
    assert "topic-5 " in await admin.see("/console/audit?before=50")
    await site.bus.topics.delete("topic-7")
    deleted = await admin.see("/console/audit?operation=topic.delete")
    assert "topic-7" in deleted
    assert "topic-8" not in deleted


async def test_viewer_sees_and_changes_nothing(site: Web, viewer: Browser):
    await site.bus.schedules.create("reports", "daily", "@daily")
    await site.bus.services.register("billing", scopes=["subscribe:orders"])
    for path in ("schedules", "services", "rules", "webhooks", "websub", "limits", "map"):
        shown = await viewer.see(f"/console/{path}")
        assert not any(word in shown for word in ("Pause", "Trigger", "Suspend", "New "))
    for action, fields in (
        ("schedule.pause", {"topic": "reports", "name": "daily"}),
        ("service.suspend", {"name": "billing"}),
        ("limits.set", {"limit": "max_topics", "value": "5"}),
        ("token.create", {"subject": "me", "scopes": "admin"}),
    ):
        assert (await viewer.act(action, **fields))["outcome"] == "refused"
    assert (await site.bus.schedules.show("reports", "daily")).state == "active"


async def test_subscriber_may_make_rules_and_webhooks_and_no_services(site: Web):
    async with httpx.AsyncClient(base_url=site.url, headers={"origin": site.url}) as client:
        subscriber = await Browser(client).sign_in(site.token("subscribe:orders", subject="reader"))
        assert "Make the rule" in await subscriber.see("/console/new-rule")
        assert "Create the webhook" in await subscriber.see("/console/new-webhook")
        assert "New schedule" not in await subscriber.see("/console/schedules")
        made = await subscriber.act("rule.create", match='{"state": ["paid"]}', source="orders")
        assert made["outcome"] == "done"
        refused = await subscriber.act("rule.create", match='{"state": ["paid"]}', source="secrets")
        assert refused["outcome"] == "refused"


async def test_nodes_of_one_process_are_none(admin: Browser):
    assert "one process" in await admin.see("/console/nodes")


class TwoNodes:
    """The table of nodes that a terminal has beside itself."""

    trouble = ""

    def __init__(self) -> None:
        self.record = NodeRecord(name="one", id="1", expires_at=9)
        nodes = (self.record, NodeRecord(name="two", id="2", expires_at=9))
        self.table = ClusterTable(now=1, nodes=nodes, owners={0: "1", 1: "2", 2: "2"}, units=4)

    async def look(self) -> ClusterTable:
        new = NodeRecord(name="three", id="3", expires_at=9)
        return msgspec.structs.replace(self.table, nodes=(*self.table.nodes, new))

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        one, two = self.table.nodes
        assert name == two.name
        changed = msgspec.structs.replace(two, draining=draining)
        self.table = msgspec.structs.replace(self.table, nodes=(one, changed))
        return self.table


async def test_nodes_are_listed_drained_and_resumed(site: Web, admin: Browser):
    site.terminal.nodes = TwoNodes()
    shown = await admin.see("/console/nodes")
    assert "1 of 4 units are at no node" in shown
    assert re.search(r"one this page home live 1 25.0%", shown), shown
    assert (await site.bus.nodes.show("three")).state == "live"  # it has started a moment ago
    drained = await admin.act("node.drain", name="two")
    assert "2 units go to other nodes" in drained["asked"]
    assert "draining" in await admin.see("/console/nodes")
    await admin.act("node.resume", name="two")
    assert "draining" not in await admin.see("/console/nodes")


async def test_map_says_that_the_terminal_stands_alone(admin: Browser):
    assert "stands alone" in await admin.see("/console/map")


async def test_names_and_notes_are_no_markup(site: Web, admin: Browser):
    hostile = "<script>alert(1)</script>"
    await site.bus.services.register("billing", owner=hostile, description=hostile, scopes=["observe"])
    await site.bus.services.suspend("billing", note=hostile)
    await site.bus.schedules.create("reports", "daily", "@daily", key=hostile, payload=hostile)
    for path in ("services", "services/billing", "topics/reports/schedules/daily", "audit"):
        raw = await admin.raw(f"/console/{path}")
        assert "<script>alert" not in raw
