"""Where the terminal is and with what token, on its way from the driver to the executors.

A context is looked up where the query is planned: the machines of a cluster have no contexts of their own.
The token is in nothing that is shown: neither in a repr nor in an error, and Spark's own plans hide an option
of that name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from landbridge.client import bus as asynchronous
from landbridge.client.context import Context, resolve
from landbridge.client.link import dial_of
from landbridge.client.sync import Bus
from landbridge.errors import BadContext, BadOption, TimedOut

T = TypeVar("T")

#: Seconds without an answer after which a task fails, for Spark to try it again elsewhere. A terminal that
#: restarts is back long before.
ANSWER_WITHIN = 120.0

#: Buses of this process, for workers serve many tasks; by process, for workers are forked.
_buses: dict[tuple[int, Access], Bus] = {}


class Access:
    __slots__ = ("_ca", "_token", "url")

    def __init__(self, context: Context) -> None:
        self.url = context.url
        self._token = context.token
        self._ca = context.ca

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Access:
        """From the options url, context and token, the environment, and the current context."""
        given = {name.lower(): value for name, value in options.items()}
        url, token, context = given.get("url"), given.get("token"), given.get("context")
        if url is not None and context is not None:
            raise BadOption("either url or context says where the terminal is, not both")
        try:
            return cls(resolve(url, token, context))
        except BadContext as error:
            raise BadOption(str(error), hint=error.hint) from None

    def __getstate__(self) -> tuple[str, str, str | None]:
        return self.url, self._token, self._ca

    def __setstate__(self, state: tuple[str, str, str | None]) -> None:
        self.url, self._token, self._ca = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Access) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.__getstate__())

    def __repr__(self) -> str:
        return f"Access({self.url})"

    def bus(self) -> Bus:
        """A connection of this process, opened when it is first asked for."""
        key = (os.getpid(), self)
        bus = _buses.get(key)
        if bus is None or bus.closed is not None:
            context = Context(self.url, self._token, self._ca)
            dial = dial_of(context)
            bus = _buses[key] = Bus(
                lambda: asynchronous.Bus(dial, context.token, name="spark", address=context.url).open()
            )
        return bus


def close_buses() -> None:
    """Leave the terminals that this process is connected to."""
    for key in [key for key in _buses if key[0] == os.getpid()]:
        _buses.pop(key).close()


def answer(future: Future[T], what: str) -> T:
    try:
        return future.result(ANSWER_WITHIN)
    except NotYet:
        raise TimedOut(f"no answer from the terminal to {what} within {ANSWER_WITHIN:.0f} s") from None
