"""Where the terminal is and which token is used there, on the way from the driver to the executors.

A context is looked up where the query is planned, because the machines of a cluster have no contexts of their
own. The token is never shown: it is in no repr and in no error, and Spark hides an option of that name in its
plans.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import TypeVar

from landbridge.client import bus as asynchronous
from landbridge.client.context import Context, resolve
from landbridge.client.sync import Bus
from landbridge.client.wire import dial_of
from landbridge.errors import BadContext, BadOption, TimedOut

T = TypeVar("T")

#: Seconds without an answer after which a task fails, so that Spark tries it again elsewhere. A terminal that
#: restarts is back long before.
ANSWER_WITHIN = 120.0


@dataclass(frozen=True)
class TerminalAccess:
    url: str
    token: str = field(repr=False)
    ca: str | None = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TerminalAccess:
        """From the options url, context and token, the environment, and the current context."""
        given = {name.lower(): value for name, value in options.items()}
        url, token, context = given.get("url"), given.get("token"), given.get("context")
        if url is not None and context is not None:
            raise BadOption("either url or context says where the terminal is, not both")
        try:
            found = resolve(url, token, context)
        except BadContext as error:
            raise BadOption(str(error), hint=error.hint) from None
        return cls(found.url, found.token, found.ca)

    def bus(self) -> Bus:
        """The connection of this process to the terminal, opened at the first call."""
        key = (os.getpid(), self)
        bus = _buses.get(key)
        if bus is None or bus.closed is not None:
            dial = dial_of(Context(self.url, self.token, self.ca))
            bus = _buses[key] = Bus(
                lambda: asynchronous.Bus(dial, self.token, name="spark", address=self.url).open()
            )
        return bus


#: The connections of this process: a worker serves many tasks. Keyed by process, because workers fork.
_buses: dict[tuple[int, TerminalAccess], Bus] = {}


def close_buses() -> None:
    """Close the connections of this process."""
    for key in [key for key in _buses if key[0] == os.getpid()]:
        _buses.pop(key).close()


def answer(future: Future[T], what: str) -> T:
    try:
        return future.result(ANSWER_WITHIN)
    except NotYet:
        raise TimedOut(f"no answer from the terminal to {what} within {ANSWER_WITHIN:.0f} s") from None
