"""A real browser for the pages of the console: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

import landbridge.sync
from tests.cli.conftest import LIMIT, Place

NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Milliseconds after which whoever waits has failed.
PATIENCE = 60_000.0
expect.set_options(timeout=PATIENCE)


def executable() -> str:
    """Where the browser is. Without one the test is skipped; in CI it fails."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    missing = "there is no chromium here: apt-get install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@contextmanager
def browser() -> Iterator[Browser]:
    path = executable()
    with sync_playwright() as playwright:
        # As root, as in most containers, its own sandbox can't be had.
        found = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        try:
            yield found
        finally:
            found.close()


@dataclass
class Person:
    """Somebody at a browser, who has signed in."""

    page: Page
    base: str
    #: What the console of the browser has told of errors: scripts, styles, the policy, requests.
    errors: list[str] = field(default_factory=list)

    def watch(self) -> None:
        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.errors.append(message.text)

        self.page.on("console", note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_default_timeout(PATIENCE)

    def go(self, path: str) -> Page:
        try:
            self.page.goto(self.base + path)
        except Error as error:
            # What the person did last had the page loaded anew, which came between.
            if "interrupted by another navigation" not in str(error):
                raise
            self.page.goto(self.base + path)
        return self.page

    def says(self, text: str) -> None:
        """A notice says this."""
        expect(self.page.locator("#notices")).to_contain_text(text)

    def confirm(self, *sentences: str) -> None:
        """The dialog says all of this, and the person agrees."""
        for sentence in sentences:
            expect(self.page.locator("dialog[open] .meaning")).to_contain_text(sentence)
        self.page.locator("dialog[open] .buttons button").click()
        expect(self.page.locator("dialog[open]")).to_have_count(0)


def faults(page: Page) -> list[tuple[str, str]]:
    """The serious faults of a page for people who can't see it well: what is wrong, and where."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return [(each["id"], each["nodes"][0]["html"]) for each in serious]


def check_looks(person: Person, paths: Iterable[str]) -> None:
    """No page has a serious fault for people who can't see it well, by light or dark, or is wider than a
    phone."""
    page = person.page
    for path in paths:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            person.go(path)
            assert faults(page) == [], (path, scheme)
        page.set_viewport_size({"width": 390, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, path
        page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


class Site:
    """A terminal as a process of its own, that can be killed and started again on the same ports."""

    def __init__(self, place: Place, port: int, http_port: int) -> None:
        self.place, self._ports = place, (str(port), str(http_port))
        self.base = f"http://127.0.0.1:{http_port}"
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        port, http_port = self._ports
        process = self.place.start(
            "up", "--json", "--port", port, "--http-port", http_port, stderr=subprocess.DEVNULL
        )
        try:
            line = process.stdout and process.stdout.readline()
            assert line, "the terminal did not start"
        except BaseException:
            process.kill()
            process.communicate()
            raise
        self.process = process

    @property
    def context(self) -> dict[str, str]:
        """The context that the terminal has made: its address and a token."""
        home = Path(self.place.settings["LANDBRIDGE_HOME"])
        found: dict[str, str] = json.loads((home / "contexts" / "local.json").read_text())
        return found

    def connect(self) -> landbridge.sync.Bus:
        """A program with the context's token; use it with ``with``. Playwright's loop runs in this thread, so
        a command can't be called here."""
        return landbridge.sync.connect(self.context["url"], token=self.context["token"])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)

    def link(self, token: str = "") -> str:
        """A one-time link, for the context's token or another one."""
        token = token or self.context["token"]
        answer = httpx.post(
            f"{self.base}/console/links", headers={"authorization": f"Bearer {token}"}, timeout=LIMIT
        )
        return self.base + str(answer.json()["path"])

    def sign_in(self, context: BrowserContext, token: str = "") -> Person:
        person = Person(context.new_page(), self.base)
        person.watch()
        person.page.goto(self.link(token))
        person.page.wait_for_url(f"{self.base}/")
        return person
