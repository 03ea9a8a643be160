"""The pages of control in a real browser: services, schedules, rules, webhooks, feeds, mail, SMS, tokens, the
audit log, limits and the map, every action by what it changes for whoever looks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.cli.conftest import LIMIT
from tests.console.browser import Person, Site, check_looks

pytestmark = pytest.mark.timeout(4 * LIMIT)


def test_a_schedule_is_made_triggered_paused_and_removed(site: Site, person: Person) -> None:
    page = person.go("/console/schedules")
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Topic").fill("reports")
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("When").first.fill("30 2 * * mon-fri")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_role("button", name="Create the schedule").click()
    page.wait_for_url("**/topics/reports/schedules/nightly")
    fired = page.locator(".figure", has_text="Fired").locator(".value")
    expect(fired).to_have_text("0")
    page.get_by_role("button", name="Trigger now").click()
    person.confirm("One message is published to reports now")
    expect(fired).to_have_text("1")
    expect(page.get_by_role("row", name="trigger")).to_contain_text("fired")
    page.get_by_label("Why").fill("stock-taking")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".banner")).to_contain_text("stock-taking")
    person.go("/console/schedules")
    row = page.get_by_role("row", name="nightly")
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("active")
    person.go("/console/topics/reports/schedules/nightly")
    page.get_by_label("From").fill("yesterday")
    page.get_by_label("To", exact=False).last.fill("-1h")
    page.get_by_role("button", name="Backfill").click()
    expect(page.locator(".outcome", has_text="not a moment")).to_be_visible()
    person.errors.clear()  # the browser tells of the refusal
    page.get_by_role("button", name="Remove the schedule").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/schedules")
    expect(page.get_by_role("row", name="nightly")).to_have_count(0)


def test_a_credential_is_shown_until_it_is_closed(site: Site, person: Person) -> None:
    page = person.go("/console/services")
    page.get_by_role("link", name="New service").click()
    page.get_by_label("Name").fill("billing")
    page.get_by_label("What it may do").fill("subscribe:orders")
    page.get_by_role("button", name="Register the service").click()
    shown = page.locator("dialog[open] code")
    expect(shown).to_have_text(re.compile(r"lbsc1_\w+"))
    credential = shown.inner_text()
    page.get_by_role("link", name="Close").click()
    page.wait_for_url("**/console/services/billing")
    assert credential not in page.content()
    with site.connect() as bus:
        assert bus.services.token("billing", credential).scopes == ["subscribe:orders"]
    suspend = page.locator(".card", has=page.get_by_role("heading", name="Suspend"))
    suspend.get_by_label("Why").fill("stolen")
    suspend.get_by_role("button", name="Suspend").click()
    person.confirm("tokens are refused until it is resumed")
    expect(page.locator(".banner")).to_contain_text("stolen")
    person.go("/console/services/billing")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".banner")).to_have_count(0)
    page.get_by_role("button", name="Remove the service").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/services")
    expect(page.get_by_role("row", name="billing")).to_have_count(0)


def test_a_rule_is_made_and_says_why_it_does_not_choose(site: Site, person: Person) -> None:
    page = person.go("/console/rules")
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Source").fill("pages.rules")
    page.get_by_label("Query").fill('{"state": ["paid"]}')
    page.get_by_role("button", name="Make the rule").click()
    page.wait_for_url("**/console/rules/match.*")
    chosen = page.locator(".figure", has_text="Chosen").locator(".value")
    with site.connect() as bus:
        bus.publish("pages.rules", {"state": "paid"})
    expect(chosen).to_have_text("1")
    person.go("/console/rules-test")
    page.get_by_label("Published to").fill("pages.rules")
    page.get_by_label("Payload").fill('{"state": "open"}')
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_role("row", name="match.")).to_contain_text("not chosen")
    expect(page.get_by_role("row", name="match.")).to_contain_text("open")
    person.go("/console/rules?source=pages.rules")
    page.locator("tbody td.name a").click()
    page.get_by_role("button", name="Delete the rule").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/rules")


def test_attempts_of_a_webhook_appear_as_they_are_made(site: Site, person: Person) -> None:
    page = person.go("/console/webhooks")
    page.get_by_role("link", name="New webhook").click()
    page.get_by_label("Topic").fill("pages.hooks")
    page.get_by_label("Name").fill("shop")
    # A name that leads to no public address, and so one that is refused at every attempt.
    page.get_by_label("URL").fill("http://localhost:9/hook")
    page.get_by_role("button", name="Create the webhook").click()
    expect(page.locator("dialog[open] code")).to_have_text(re.compile("whsec_.+"))
    page.get_by_role("link", name="Close").click()
    page.wait_for_url("**/topics/pages.hooks/webhooks/shop")
    expect(page.locator("main")).to_contain_text("Nothing was sent yet")
    with site.connect() as bus:
        bus.publish("pages.hooks", {"id": 1})
    attempt = page.locator("section", has_text="Last attempts").locator("tbody tr").first
    expect(attempt).to_contain_text("failed")
    page.get_by_label("Why").fill("the shop moves")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".banner")).to_contain_text("the shop moves")
    page.get_by_label("From the offset").fill("0")
    page.get_by_role("button", name="Replay").click()
    person.confirm("offset 0")
    page.get_by_role("button", name="Delete the webhook").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/webhooks")
    expect(page.get_by_role("row", name="shop")).to_have_count(0)


def test_a_feed_is_opened_and_closed(site: Site, person: Person) -> None:
    page = person.go("/console/websub")
    page.get_by_text("Open a topic as a feed").click()
    page.get_by_label("Topic", exact=True).fill("pages.feed")
    page.get_by_role("button", name="Open the feed").click()
    person.confirm("without a token")
    row = page.get_by_role("row", name="pages.feed")
    expect(row).to_contain_text("/v1/feeds/pages.feed")
    row.get_by_role("button", name="Close").click()
    person.confirm("callbacks are told")
    expect(row).to_have_count(0)


def test_a_token_is_made_and_revoked_and_its_session_ends(
    site: Site, person: Person, chromium: Browser
) -> None:
    page = person.go("/console/tokens")
    page.get_by_label("For the service").fill("helper")
    page.get_by_label("What its bearer may do").fill("observe")
    page.get_by_role("button", name="Make the token").click()
    token = page.locator("dialog[open] code").inner_text()
    page.get_by_role("link", name="Close").click()
    context = chromium.new_context()
    other = site.sign_in(context, token)
    other.go("/console/services")
    page.get_by_role("row", name="helper").get_by_role("button", name="Revoke").click()
    person.confirm("its connections end")
    expect(page.get_by_role("row", name="helper")).to_contain_text("revoked")
    expect(other.page.locator("#live")).to_have_text("signed out")
    context.close()
    person.go("/console/audit?operation=token.revoke")
    expect(page.locator("tbody tr").first).to_contain_text("token.revoke")


def test_a_limit_and_a_level_are_set(site: Site, person: Person) -> None:
    page = person.go("/console/limits")
    page.get_by_role("link", name="max_topics").click()
    page.get_by_label("New value").fill("9000")
    page.get_by_role("button", name="Set the limit").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/limits")
    row = page.get_by_role("row", name="max_topics")
    expect(row).to_contain_text("9,000")
    row.get_by_role("button", name="Reset").click()
    expect(row).to_contain_text("100,000")
    page.get_by_label("From this level on").select_option("warning")
    page.locator(".card", has_text="What the process logs").get_by_role("button").click()
    person.says("logs from warning on")
    expect(page.get_by_label("From this level on")).to_have_value("warning")


def test_the_map_draws_the_terminal(site: Site, person: Person) -> None:
    page = person.go("/console/map")
    expect(page.locator("svg.topology text.name")).to_have_text("local")
    expect(page.get_by_role("row", name="local")).to_contain_text("here")
    page.get_by_label("to the terminal").fill("nowhere")
    page.get_by_role("button", name="Draw").click()
    expect(page.locator(".refusal")).to_contain_text("nowhere")


PAGES = [
    "/console/map", "/console/services", "/console/services/looks", "/console/new-service",
    "/console/schedules", "/console/topics/looks/schedules/daily", "/console/new-schedule",
    "/console/rules", "/console/new-rule", "/console/rules-test?source=looks&payload=1",
    "/console/webhooks", "/console/topics/looks/webhooks/shop", "/console/new-webhook", "/console/websub",
    "/console/mail", "/console/new-mail", "/console/topics/looks/mail/team", "/console/sms",
    "/console/new-sms", "/console/nodes", "/console/tokens", "/console/audit", "/console/limits",
    "/console/limits/max_topics",
]  # fmt: skip


def test_every_page_of_control_is_accessible_and_fits_a_phone(site: Site, person: Person) -> None:
    with site.connect() as bus:
        bus.services.register("looks", scopes=["observe"], owner="team", description="d" * 200)
        bus.schedules.create("looks", "daily", "@daily")
        bus.webhooks.create("looks", "shop", "https://example.com/" + "x" * 200)
        bus.rules.create({"state": ["paid"]}, "looks")
        bus.websub.open("looks")
        bus.mails.create("looks", "team", "smtps://mail.example", "bus@a.example", ("x@a.example",))
    check_looks(person, PAGES)
