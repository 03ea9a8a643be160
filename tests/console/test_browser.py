"""The console in a real browser: every page and every action by what it changes for whoever looks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.cli.conftest import LIMIT, until
from tests.console.browser import Person, Site, check_looks, faults

pytestmark = pytest.mark.timeout(4 * LIMIT)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def publish(site: Site, topic: str, *payloads: str, key: str = "k") -> None:
    with site.connect() as bus:
        for payload in payloads:
            bus.publish(topic, payload.encode(), key=key)


def bury(site: Site, topic: str, group: str, *causes: str) -> None:
    """Publish a message for each cause, which the group buries for it."""
    with site.connect() as bus:
        bus.groups.create(topic, group)
        for number, cause in enumerate(causes):
            bus.publish(topic, {"number": number, "cause": cause})
        with bus.subscribe(topic, group=group) as messages:
            for _, message in zip(causes, messages, strict=False):
                message.bury(message.json()["cause"])
        until(lambda: sum(row.letters for row in bus.letters.summary(topic=topic).causes) == len(causes))


# -- signing in ------------------------------------------------------------------------------------


def test_a_link_signs_in_once(site: Site, chromium: Browser) -> None:
    context = chromium.new_context()
    link = site.link()
    page = context.new_page()
    page.goto(link)
    page.wait_for_url(f"{site.base}/")
    expect(page.locator(".subject")).to_have_text("admin")
    expect(page.locator("#live")).to_have_text("live")
    other = chromium.new_context().new_page()
    other.goto(link)
    expect(other.locator("main")).to_contain_text("used already")
    expect(other.locator("main")).to_contain_text("landbridge console")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Signed out")
    page.goto(f"{site.base}/console/topics")
    expect(page.locator("main")).to_contain_text("not signed in")
    context.close()
    other.context.close()


def test_the_overview_is_live(site: Site, person: Person) -> None:
    page = person.go("/")
    messages_in = page.locator(".figure", has_text="Messages in").first
    expect(messages_in.locator("svg")).to_be_visible()
    expect(page.locator("main")).to_contain_text("healthy")
    expect(messages_in.locator(".value")).to_have_text("0/s")
    publish(site, "overview", *("x" * 20))
    expect(messages_in.locator(".value")).not_to_have_text("0/s")
    expect(page.locator(".figure", has_text="Connections")).to_contain_text(re.compile(r"[1-9]\d* topics"))


# -- topics ------------------------------------------------------------------------------------------


def test_topics_are_made_searched_paused_changed_and_deleted(site: Site, person: Person) -> None:
    page = person.go("/console/topics")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name").fill("shop.orders")
    page.get_by_label("Keep messages for").fill("2d")
    page.get_by_role("button", name="Create the topic").click()
    page.wait_for_url("**/console/topics/shop.orders")
    person.says("The topic shop.orders is there")
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_label("Keep messages for")).to_have_value("2d")
    page.get_by_label("Keep messages for").fill("none")
    page.get_by_role("button", name="Save").click()
    person.says("saved")
    expect(page.get_by_label("Keep messages for")).to_have_value("none")
    page.get_by_label("Why").fill("the ledger moves")
    page.get_by_role("button", name="Pause the topic").click()
    person.confirm("Publishes to shop.orders are refused")
    person.go("/console/topics/shop.orders")
    expect(page.locator(".banner")).to_contain_text("the ledger moves")
    person.go("/console/topics?contains=shop")
    row = page.get_by_role("row", name="shop.orders")
    expect(row).to_contain_text("paused")
    person.go("/console/topics/shop.orders/settings")
    page.get_by_role("button", name="Resume the topic").click()
    expect(page.get_by_role("button", name="Pause the topic")).to_be_visible()
    page.get_by_role("button", name="Delete the topic").click()
    expect(page.locator("dialog[open] .meaning")).to_contain_text("can’t be undone")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.get_by_role("button", name="Delete the topic").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/topics")
    person.says("The topic shop.orders is deleted")
    expect(page.get_by_role("row", name="shop.orders")).to_have_count(0)


def test_rows_show_what_happens_without_a_reload(site: Site, person: Person) -> None:
    publish(site, "live.rows", "1")
    page = person.go("/console/topics?contains=live.rows")
    row = page.get_by_role("row", name="live.rows")
    expect(row.locator("td").nth(3)).to_have_text("1")
    publish(site, "live.rows", "2", "3")
    expect(row.locator("td").nth(3)).to_have_text("3")
    expect(row.locator("td").nth(2)).to_have_text(re.compile(r"[\d.]+"))  # the rate


# -- messages ----------------------------------------------------------------------------------------


def test_a_message_is_published_found_and_shown_whole(site: Site, person: Person) -> None:
    publish(site, "pages.messages", '{"state": "open"}', '{"state": "paid", "sum": 12.50}', "plain text")
    page = person.go("/console/topics/pages.messages/publish")
    page.get_by_label("Payload").fill(f'{{"state": "paid", "note": "{HOSTILE}"}}')
    page.get_by_label("Key").fill("eu-7")
    page.get_by_label("Headers").fill(f"trace: {HOSTILE}\nregion: eu")
    page.get_by_role("button", name="Publish").click()
    person.says("at offset 3")
    page.get_by_role("link", name="Messages").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.locator("tbody tr").first).to_contain_text(HOSTILE)
    page.get_by_label("Rule matches").fill('{"state": ["paid"]}')
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Rule matches").fill("")
    page.get_by_label("Key is").fill("eu-7")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.locator("pre.json")).to_contain_text('"state": "paid"')
    expect(page.locator("pre.json .k").first).to_have_text('"state"')
    expect(page.get_by_role("row", name="trace")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    page.get_by_role("link", name="Publish again").click()
    expect(page.get_by_label("Key")).to_have_value("eu-7")
    page.get_by_role("link", name="Messages").click()
    page.get_by_label("Payload contains").fill("plain")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("From").fill("1")  # newest first, it is the newest that may be found
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".empty")).to_contain_text("Nothing matches here")
    page.get_by_label("Order").select_option("oldest first")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)


# -- groups ------------------------------------------------------------------------------------------


def test_a_group_is_made_paused_moved_after_a_preview_and_deleted(site: Site, person: Person) -> None:
    publish(site, "pages.groups", "1", "2", "3", "4")
    page = person.go("/console/topics/pages.groups")
    page.get_by_role("link", name="New group").click()
    page.get_by_label("Name").fill("billing")
    page.get_by_role("button", name="Create the group").click()
    page.wait_for_url("**/groups/billing")
    lag = page.locator(".figure", has_text="Lag").locator(".value")
    expect(lag).to_have_text("4")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".banner")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".banner")).to_have_count(0)
    page.get_by_label("Where to").select_option("offset")
    page.get_by_label("Offset or moment").fill("3")
    page.get_by_role("button", name="Preview the move").click()
    expect(page.locator("dialog[open] .meaning")).to_contain_text("Up to 3 messages that it has not settled")
    page.get_by_role("link", name="Cancel").click()
    expect(lag).to_have_text("4")
    page.get_by_role("button", name="Preview the move").click()
    person.confirm("It goes to offset 3")
    expect(lag).to_have_text("1")
    page.get_by_label("Where to").select_option("earliest")
    page.get_by_role("button", name="Preview the move").click()
    person.confirm("3 messages that it has settled will be delivered again")
    expect(lag).to_have_text("4")
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Attempts at most").fill("3")
    page.get_by_role("button", name="Save").click()
    person.says("saved")
    expect(page.locator(".facts")).to_contain_text("Attempts at most\n3", use_inner_text=True)
    page.get_by_role("button", name="Delete the group").click()
    page.locator("dialog[open] .buttons button").click()
    page.wait_for_url("**/console/topics/pages.groups")
    expect(page.locator("main")).to_contain_text("No group reads this topic")


# -- dead letters ------------------------------------------------------------------------------------


def test_letters_of_a_cause_are_looked_at_redriven_and_deleted(site: Site, person: Person) -> None:
    bury(site, "pages.letters", "billing", "late", "late", "late", HOSTILE)
    page = person.go("/console/dead-letters")
    row = page.get_by_role("row", name="pages.letters").filter(has_text="late")
    expect(row.locator("td").nth(3)).to_have_text("3")
    expect(page.get_by_role("row").filter(has_text=HOSTILE)).to_have_count(1)
    row.get_by_role("link", name="Look").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody tr").first).to_contain_text('"number":0')
    page.get_by_role("button", name="Redrive the chosen").click()
    expect(page.locator(".outcome")).to_contain_text("no letter is chosen")
    person.errors.clear()  # the browser tells of the refusal
    page.get_by_label("Choose the letter 1").check()
    page.get_by_role("button", name="Redrive the chosen").click()
    person.confirm("1 letter would go back into pages.letters, for the group billing alone")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Delete all of this cause").click()
    person.confirm("2 letters of the cause 'late'")
    expect(page.locator("main")).to_contain_text("No letters wait here")
    page = person.go("/console/dead-letters")
    page.get_by_role("row").filter(has_text=HOSTILE).get_by_role("button", name="Redrive").click()
    person.confirm("1 letter")
    expect(page.get_by_role("row", name="pages.letters")).to_have_count(0)


def test_a_message_is_followed_by_its_id_and_by_its_offset(site: Site, person: Person) -> None:
    publish(site, "pages.where", "1", "2")
    with site.connect() as bus:
        bus.groups.create("pages.where", "lake")
    page = person.go("/console/where?topic=pages.where&offset=1")
    expect(page.locator(".timeline")).to_contain_text("Group lake")
    expect(page.locator(".timeline")).to_contain_text("Waits for a consumer")
    id = page.locator(".facts dd").first.inner_text()
    person.go("/console/where")
    page.get_by_label("Id of the message").fill(id)
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".timeline")).to_contain_text("offset 1")
    with site.connect() as bus:
        bus.groups.seek("pages.where", "lake", to="latest")
    expect(page.locator(".timeline")).to_contain_text("settled")


# -- who sees what -----------------------------------------------------------------------------------


def test_a_viewer_sees_no_button_and_no_payload(site: Site, chromium: Browser) -> None:
    publish(site, "pages.viewer", "1")
    with site.connect() as bus:
        bus.groups.create("pages.viewer", "g")
        bus.services.register("viewer", scopes=["observe"], credential=False)
        token = bus.tokens.create("viewer", ["observe"]).token
    context = chromium.new_context()
    person = site.sign_in(context, token)
    page = person.go("/console/topics/pages.viewer")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.locator("main button").count() == 0
    assert page.get_by_role("link", name="Messages", exact=True).count() == 0
    person.go("/console/topics")
    assert page.get_by_role("link", name="New topic").count() == 0
    assert person.errors == []
    person.go("/console/topics/pages.viewer/messages")
    expect(page.locator("main")).to_contain_text("needs subscribe:pages.viewer")
    with site.connect() as bus:
        bus.tokens.revoke(subject="viewer")
    person.go("/console/topics")
    expect(page.locator("main")).to_contain_text("not signed in")
    context.close()


def test_without_a_script_the_forms_work(site: Site, chromium: Browser) -> None:
    publish(site, "pages.plain", "1")
    with site.connect() as bus:
        bus.groups.create("pages.plain", "g")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.link())
    page.get_by_role("button", name="Sign in as admin").click()
    page.goto(f"{site.base}/console/topics/pages.plain/groups/g")
    page.get_by_label("Where to").select_option("latest")
    page.get_by_role("button", name="Preview the move").click()
    expect(page.locator(".meaning")).to_contain_text("the end of the log")
    page.get_by_role("button", name="Move the group").click()
    expect(page.locator("#notices")).to_contain_text("is at offset 1")
    expect(page.locator(".figure", has_text="Lag").locator(".value")).to_have_text("0")
    context.close()


# -- how it looks, and after a fall --------------------------------------------------------------------

PAGES = [
    "/", "/console/topics", "/console/new-topic", "/console/topics/looks", "/console/topics/looks/messages",
    "/console/topics/looks/messages/0", "/console/topics/looks/publish", "/console/topics/looks/settings",
    "/console/topics/looks/groups/g", "/console/topics/looks/new-group", "/console/dead-letters",
    "/console/dead-letters/looks/g", "/console/where?topic=looks&offset=0",
]  # fmt: skip
#: Those that have all the colours there are; axe looks at them on a dark screen, too.
COLOURED = ("/", "/console/topics/looks", "/console/topics/looks/messages/0", "/console/dead-letters/looks/g")


def test_every_page_is_accessible_and_fits_a_phone(site: Site, person: Person) -> None:
    bury(site, "looks", "g", "late", "x" * 300)
    publish(site, "looks", '{"a": [1, true, null, "x"]}')
    check_looks(person, PAGES)
    page = person.go("/console/topics/looks/groups/g")
    page.get_by_role("button", name="Preview the move").click()
    expect(page.locator("dialog[open] .meaning")).to_be_visible()
    assert faults(page) == []


def test_the_keyboard_reaches_the_page_first(site: Site, person: Person) -> None:
    page = person.go("/console/topics")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_a_session_goes_on_after_a_fall_of_the_terminal_until_somebody_signs_out(
    site: Site, chromium: Browser
) -> None:
    publish(site, "pages.fall", "1", "2")
    context = chromium.new_context()
    person = site.sign_in(context)
    page = person.go("/console/topics?contains=pages.fall")
    expect(page.locator("#live")).to_have_text("live")
    site.kill()
    expect(page.locator("#live")).to_have_text("connecting…")
    site.start()
    expect(page.locator("#live")).to_have_text("live")  # the session has outlived the terminal
    other = context.new_page()
    other.goto(f"{site.base}/console/topics/pages.fall/messages")
    expect(other.locator("tbody tr")).to_have_count(2)
    other.get_by_role("button", name="Sign out").click()
    expect(page.locator("#live")).to_have_text("signed out")
    expect(page.locator("#notices")).to_contain_text("landbridge console")
    context.close()
