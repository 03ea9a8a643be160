"""What a page is: an entry with its path, its scope, its template and the fragments that renew themselves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from landbridge.client.bus import Bus
from landbridge.console.samples import Samples
from landbridge.console.sessions import ConsoleSession
from landbridge.core.trust.scopes import RANKS, VERBS, Scopes
from landbridge.protocol.operations import Operation

A = TypeVar("A")
#: Loads what a template shows, by name.
Load: TypeAlias = Callable[["PageView"], Awaitable[dict[str, Any]]]


class Unchanged(Exception):
    """Raised by the loader of a fragment that has nothing new for an open page."""


async def nothing(_: PageView) -> dict[str, Any]:
    """For templates that need no more than the page has."""
    return {}


@dataclass(frozen=True)
class Fragment:
    """A part of a page that is rendered by itself."""

    #: Names it in ``{{ fragment("…") }}``.
    name: str
    template: str
    load: Load = nothing
    #: Seconds after which it is loaded and rendered again, while the page is open; 0: never.
    every: float = 0.0


@dataclass(frozen=True)
class Page:
    """One page of the console."""

    #: "/console/topics/{topic}": words in braces are ``view.names``.
    path: str
    title: str
    template: str
    #: Who may see it; as the scope of an operation. Empty: every session.
    scope: str = ""
    fragments: Sequence[Fragment] = ()
    #: What the page's own template shows. It may say another ``title``.
    load: Load = nothing
    #: Parameters of the query that the page takes.
    query: Sequence[str] = ()
    #: The path of the page under which this one stands in the navigation; its own by default.
    under: str = ""


@dataclass
class PageView:
    """A page as one session sees it, with the names in its path and the parameters of its query."""

    session: ConsoleSession
    samples: Samples
    page: Page
    names: Mapping[str, str]
    query: Mapping[str, str]
    #: It is an open page, which asks again: see ``Unchanged``.
    is_live: bool = False
    #: What one open page keeps between two renewals, such as the counts that rates are made of.
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def bus(self) -> Bus:
        """The connection with the session's token."""
        return self.session.bus

    @property
    def now(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    @property
    def address(self) -> str:
        """The path and the query of the page."""
        return address(self.page.path, self.names, self.query)

    async def ask(self, operation: Operation[..., Any, A], /, **arguments: Any) -> A:
        """Call an operation. Of a list it is one page, where a method of ``bus`` may return all of them."""
        given = {name: value for name, value in arguments.items() if value is not None}
        answer = await self.bus.call(operation.name, **given)
        return msgspec.convert(answer, operation.answer)

    def may(self, scope: str, **named: Any) -> bool:
        """Does the session have a scope, written as in the table of operations? The terminal decides; this is
        for what is worth showing."""
        return allows(self.session.scopes, scope, named)


def address(path: str, names: Mapping[str, str], query: Mapping[str, str] | None = None) -> str:
    """The address of a page."""
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", quote(value, safe="$"))
    given = {name: value for name, value in (query or {}).items() if value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def allows(scopes: Scopes, scope: str, named: Mapping[str, Any]) -> bool:
    """Would these scopes be enough for an operation with this scope and these arguments?"""
    if not scope:
        return True
    alternatives, _, target = scope.partition(":")
    words = alternatives.split("|")
    if any(word in RANKS and scopes.has(word) for word in words):
        return True
    value = named.get(target[1:-1]) if target.startswith("{") else target
    verbs = [word for word in words if word in VERBS]
    if not value:  # of which topics is not said yet: of some at all?
        return bool(verbs) and (scopes.admin or any(getattr(scopes, verb) for verb in verbs))
    names = [value] if isinstance(value, str) else list(value)
    return bool(verbs) and all(any(scopes.may(verb, name) for verb in verbs) for name in names)
