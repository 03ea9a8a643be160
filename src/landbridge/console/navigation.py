"""The places of the pages. One whose page is not there, or which the session may not see, is not shown."""

from __future__ import annotations

from collections.abc import Mapping

from landbridge.console.page import Page, allows
from landbridge.core.trust.scopes import Scopes

#: Section → the paths of its pages, in the order of the navigation.
SECTIONS: dict[str, tuple[str, ...]] = {
    "": ("/", "/console/map"),
    "Messages": ("/console/topics", "/console/dead-letters", "/console/where", "/console/rules"),
    "Work": (
        "/console/services",
        "/console/schedules",
        "/console/webhooks",
        "/console/websub",
        "/console/mail",
        "/console/sms",
    ),
    "Access": ("/console/tokens", "/console/nodes", "/console/audit", "/console/limits"),
}


def shown(pages: Mapping[str, Page], scopes: Scopes) -> list[tuple[str, list[Page]]]:
    """The sections with their pages, for a session with these scopes."""
    found = []
    for section, paths in SECTIONS.items():
        there = [pages[path] for path in paths if path in pages]
        there = [page for page in there if allows(scopes, page.scope, {})]
        if there:
            found.append((section, there))
    return found
