"""Calling the functions of a service: their arguments by type, and plain functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.errors import BadRequest

#: Threads of a service, unless it says otherwise: at most so many plain functions run at once.
THREADS = 32


def name_of(function: Callable[..., Any]) -> str:
    """What to call a function in messages."""
    return getattr(function, "__name__", None) or repr(function)


def is_plain(function: Callable[..., Any]) -> bool:
    """Is it a function that blocks, and so runs in a thread? BadRequest for one that can't be called."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadRequest(f"{name_of(function)} is a generator", hint="a function that returns, without yield")
    if not callable(function):
        raise BadRequest(f"{function!r} is not a function")
    return not inspect.iscoroutinefunction(function)


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each parameter; Message for one that is called so, Any where there is none."""
    hints = typing.get_type_hints(function)
    names = inspect.signature(function).parameters
    return {name: hints.get(name, Message if name == "message" else Any) for name in names}


class Resources:
    """What the functions of a running service get by the type of a parameter, and the threads of the plain
    ones."""

    def __init__(self, bus: Bus, *, threads: int = THREADS) -> None:
        self.bus = bus
        self._values: dict[Any, Any] = {}
        self._most = threads
        self._threads: ThreadPoolExecutor | None = None

    def add(self, kind: Any, value: Any) -> None:
        """From now on, parameters of this type get this value."""
        self._values[kind] = value

    def find(self, kind: Any, *, plain: bool) -> tuple[bool, Any]:
        """(is there something for a parameter of this type, what). A plain function gets the bus without
        async."""
        if plain:
            from landbridge.client import sync

            if kind in (Bus, sync.Bus):
                return True, sync.Bus.beside(self.bus)
        elif kind is Bus:
            return True, self.bus
        try:
            return kind in self._values, self._values.get(kind)
        except TypeError:  # an annotation that can't be hashed
            return False, None

    def message(self, message: Message) -> Any:
        """A message for a plain function: its ack, requeue, bury and extend are plain calls."""
        from landbridge.client import sync

        return sync.Bus.beside(self.bus).message(message)

    async def call(self, function: Callable[..., Any], values: dict[str, Any], *, plain: bool) -> Any:
        """Call a function and return its result. A plain one runs in a thread, with the caller's context."""
        if not plain:
            return await function(**values)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="landbridge-service")
        context = contextvars.copy_context()

        def run() -> Any:
            try:
                return context.run(function, **values)
            except (StopIteration, SystemExit, KeyboardInterrupt) as error:
                # A future can't hold the first, and the others would end the loop's thread, not this one.
                raise RuntimeError(f"{name_of(function)} raised {error!r}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def arguments(self, function: Callable[..., Any], *, plain: bool) -> dict[str, Any]:
        """The arguments of a function whose parameters are all found here."""
        values = {}
        for name, kind in arguments_of(function).items():
            found, values[name] = self.find(kind, plain=plain)
            if not found:
                raise BadRequest(
                    f"{name_of(function)} wants {name}: {getattr(kind, '__name__', kind)}, which the service "
                    "doesn't have",
                    hint="landbridge.Bus, or the type of a @service.resource that comes before",
                )
        return values

    def close(self) -> None:
        """End the threads. A function that doesn't return keeps its own."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
