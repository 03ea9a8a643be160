from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.cli.conftest import Place
from tests.console.browser import Person, Site, browser
from tests.ports import free_port


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One terminal for all tests of a module; they use topics of their own."""
    found = Site(Place(tmp_path_factory.mktemp("console")), free_port(), free_port())
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def _operator(site: Site, chromium: Browser) -> Iterator[Person]:
    context = chromium.new_context()
    yield site.sign_in(context)
    context.close()


@pytest.fixture
def person(_operator: Person) -> Iterator[Person]:
    """An admin who has signed in. Whatever the browser complains of fails the test."""
    _operator.errors.clear()
    yield _operator
    assert _operator.errors == []


@pytest.fixture
def page(person: Person) -> Page:
    return person.page
