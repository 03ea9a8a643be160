"""From a view to HTML: the page with its fragments, a fragment alone, buttons and forms of actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from markupsafe import Markup

from landbridge import __version__
from landbridge.console import navigation
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.rendering import templates
from landbridge.console.sessions import ConsoleSession
from landbridge.errors import BusError, Forbidden
from landbridge.protocol.http import Problem, problem_of


class Screen:
    """Renders the pages. ``terminal``: the name that the terminal has."""

    def __init__(self, pages: Mapping[str, Page], actions: Mapping[str, Action], terminal: str) -> None:
        self.pages, self.actions, self.terminal = pages, actions, terminal

    def render(self, template: str, **values: Any) -> str:
        """A template without a view."""
        return (
            templates()
            .get_template(template)
            .render(
                {"terminal": self.terminal, "version": __version__, "session": None, "stream": "", **values}
            )
        )

    async def page(self, view: PageView) -> tuple[str, int]:
        """The whole page and its status. Raises Forbidden where the session's scopes don't allow it. What is
        wrong with a fragment is said in its place."""
        self._check(view)
        own = await view.page.load(view)
        parts = await asyncio.gather(*(self.part(view, each.name) for each in view.page.fragments))
        html = {
            each.name: Markup('<div data-fragment="{}">{}</div>').format(each.name, Markup(part))
            for each, (part, _) in zip(view.page.fragments, parts, strict=True)
        }
        status = max((status for _, status in parts), default=200)
        values = {"title": view.page.title, **own, "fragment": html.__getitem__}
        return templates().get_template(view.page.template).render(self._context(view) | values), status

    async def part(self, view: PageView, name: str) -> tuple[str, int]:
        """One fragment, or what is wrong with it, and the status of that."""
        try:
            return await self.fragment(view, name), 200
        except BusError as error:
            refusal = problem_of(error)
            return self.render("_refusal.html", error=refusal), refusal.status

    async def fragment(self, view: PageView, name: str) -> str:
        """One fragment of a page."""
        self._check(view)
        found: Fragment = next(each for each in view.page.fragments if each.name == name)
        values = await found.load(view)
        return templates().get_template(found.template).render(self._context(view) | values)

    def confirmation(
        self, session: ConsoleSession, action: Action, fields: Any, meaning: Any, back: str, *, whole: bool
    ) -> str:
        """What asks for a confirmation: a whole page, or the inside of a dialog."""
        values = {
            "action": action, "fields": fields, "meaning": meaning, "back": back, "csrf": session.csrf,
            "title": action.label,
        }  # fmt: skip
        if not whole:
            return self.render("_confirmation.html", **values)
        return self.render("confirmation.html", **{**self._around(session, None), **values})

    def refusal(self, session: ConsoleSession | None, error: Problem, title: str) -> str:
        """A page that says what is wrong."""
        around = {} if session is None else self._around(session, None)
        return self.render("refusal.html", **{"error": error, "title": title, **around})

    def _check(self, view: PageView) -> None:
        if not view.may(view.page.scope, **view.names):
            raise Forbidden(
                f"the token of this session doesn't allow to see {view.page.title}",
                hint=f"needs {_spelled(view.page.scope, view.names)}",
            )

    def _around(self, session: ConsoleSession, view: PageView | None) -> dict[str, Any]:
        """What every page of a session shows."""
        return {
            "session": session,
            "sections": navigation.shown(self.pages, session.scopes),
            "here": "" if view is None else view.page.under or view.page.path,
            "csrf": session.csrf,
            "notices": _taken(session),
            "stream": "",
        }

    def _context(self, view: PageView) -> dict[str, Any]:
        around = self._around(view.session, view) | {"terminal": self.terminal, "version": __version__}
        if any(each.every for each in view.page.fragments):
            around["stream"] = view.address
        return {
            **around,
            "view": view,
            "page": view.page,
            "may": view.may,
            "address": view.address,
            "button": partial(self._button, view),
            "form": partial(self._form, view),
        }

    def _button(
        self, view: PageView, name: str, label: str = "", /, *, look: str = "", **arguments: Any
    ) -> Markup | str:
        """A button that performs an action with these arguments; "" where the session may not. ``look``: a
        class instead of the usual one: "primary", "quiet"."""
        action = self.actions[name]
        if not view.may(action.needs, **arguments):
            return ""
        return Markup(
            self._part(
                view, "_button.html", action=action, label=label or action.label, look=look,
                fields=_fields_of(arguments),
            )
        )  # fmt: skip

    def _form(
        self, view: PageView, name: str, label: str = "", /, *, caller: Callable[[], str], **arguments: Any
    ) -> Markup | str:
        """A form for an action, whose inputs are the block of the call; "" where the session may not."""
        action = self.actions[name]
        if not view.may(action.needs, **arguments):
            return ""
        return Markup(
            self._part(
                view, "_form.html", action=action, label=label or action.label, inner=caller(),
                fields=_fields_of(arguments),
            )
        )  # fmt: skip

    def _part(self, view: PageView, template: str, **values: Any) -> str:
        return self.render(template, csrf=view.session.csrf, back=view.address, **values)


def _spelled(scope: str, names: Mapping[str, str]) -> str:
    """A scope with the names in place of the words in braces."""
    for name, value in names.items():
        scope = scope.replace(f"{{{name}}}", value)
    return scope


def _fields_of(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Arguments as hidden fields."""
    found = []
    for name, value in arguments.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if value is not None:
            found.append((name, str(value)))
    return found


def _taken(session: ConsoleSession) -> Callable[[], list[tuple[str, str]]]:
    """Takes the notices of a session, when the template shows them."""

    def take() -> list[tuple[str, str]]:
        found = list(session.notices)
        session.notices.clear()
        return found

    return take
