"""What an action is: a form bound to a typed operation of the terminal, with its confirmation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.protocol.operations import Operation

#: Sentences that say what an action with these arguments will do.
Meaning: TypeAlias = Callable[[Bus, dict[str, Any]], Awaitable[Sequence[str]]]
#: Makes the arguments of the operation from the fields of the form.
Read: TypeAlias = Callable[[forms.Fields], dict[str, Any]]
#: Performs it, where that is more than one call. Returns what ``done`` can name.
Perform: TypeAlias = Callable[[Bus, dict[str, Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Action:
    """Something that a person can do on a page."""

    #: Names it in ``button("…")`` and ``form("…")``, and in its path; the operation's name, mostly.
    name: str
    #: What the terminal is asked for. Its scope says who sees the button. None for what is no operation, such
    #: as publishing: ``scope``, ``read`` and ``perform`` stand in its place.
    operation: Operation[..., Any, Any] | None
    #: On the button.
    label: str
    #: What is told afterwards. May name arguments, and fields of the answer: "{name} is paused".
    done: str
    #: It destroys or moves something: it is performed only after a confirmation.
    danger: bool = False
    #: What the confirmation says. Without ``danger`` it is asked for as well, where this is given.
    meaning: Meaning | None = None
    #: The page to go to afterwards, with the same names as ``done``. Empty: the page stays.
    to: str = ""
    #: The field of the answer that is shown this once, such as a credential. It stays on the screen until the
    #: person closes it.
    secret: str = ""
    #: Nothing that its page shows is changed by it: the form keeps what was written.
    stays: bool = False
    #: Fields that are lists: a line, or a field, for each element.
    lists: Sequence[str] = ()
    #: Instead of ``forms.arguments``.
    read: Read | None = None
    #: Instead of one call of the operation.
    perform: Perform | None = None
    #: Instead of the operation's scope, where ``perform`` does something else.
    scope: str | None = None

    @property
    def needs(self) -> str:
        """The scope, as of an operation."""
        if self.scope is not None:
            return self.scope
        assert self.operation is not None, f"{self.name} has no operation and no scope"
        return self.operation.scope

    @property
    def is_confirmed(self) -> bool:
        """Is it asked for a confirmation first?"""
        return self.danger or self.meaning is not None

    def arguments(self, fields: forms.Fields) -> dict[str, Any]:
        """The arguments that a form says. Raises BadRequest."""
        if self.read is not None:
            return self.read(fields)
        assert self.operation is not None, f"{self.name} has no operation and no read"
        given = forms.arguments(fields, self.lists)
        request = self.operation.read(given, strict=False)
        found: dict[str, Any] = msgspec.to_builtins(request)
        return found

    async def run(self, bus: Bus, arguments: dict[str, Any], origin: str) -> ActionResult:
        """Do it. ``origin``: where the browser is, for the audit log."""
        if self.perform is not None:
            answer = await self.perform(bus, arguments)
        else:
            assert self.operation is not None, f"{self.name} has no operation and no perform"
            found = await bus.call_for(origin, self.operation.name, arguments)
            answer = found if isinstance(found, dict) else {}
        names = _Names({**arguments, **answer})
        # A name may have any character that a path must not have.
        in_path = _Names({name: quote(str(value), safe="$") for name, value in names.items()})
        secret = str(answer.get(self.secret) or "") if self.secret else ""
        return ActionResult(self.done.format_map(names), self.to.format_map(in_path), secret)


class ActionResult(NamedTuple):
    """What became of an action."""

    told: str
    #: The page to go to; empty: the page stays.
    to: str
    #: What is shown this once; empty: nothing.
    secret: str


class _Names(dict[str, Any]):
    """Names of a sentence: one that there is no value of stands for nothing."""

    def __missing__(self, key: str) -> str:
        return ""
