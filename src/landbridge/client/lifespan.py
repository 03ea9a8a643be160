"""The lifespan of a service: what it needs while it runs, and what happens before and after.

Resources are made in the order in which they were declared, then the startup hooks run, then the handlers.
In the end the shutdown hooks run, the last one first, and the resources are closed, the last one first. If a
resource or a startup hook fails, no handler runs, what was made before is closed, and the error is raised.
If a shutdown hook fails, the others run all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from landbridge.client.bus import Bus
from landbridge.client.calling import Resources, arguments_of, is_plain, name_of
from landbridge.client.message import Message
from landbridge.errors import BadRequest

#: Return types of functions whose value has an end, as the type of the value is the first argument.
_WRAPPING = (AsyncIterator, AsyncIterable, AsyncGenerator, AbstractAsyncContextManager)
#: Types that parameters of handlers have for other reasons.
_TAKEN = (Any, Message, Bus, bytes, str, None, type(None))


class Lifespan:
    """What a service has declared to happen around its handlers."""

    def __init__(self, service: str) -> None:
        self._service = service
        #: The type of each resource, and the function that makes it.
        self._resources: dict[Any, Callable[..., Any]] = {}
        self._startups: list[Callable[..., Any]] = []
        self._shutdowns: list[Callable[..., Any]] = []

    def add_resource(self, function: Callable[..., Any]) -> None:
        """An async generator that yields once, a function that returns an async context manager, or an async
        function that returns the value."""
        kind = _kind_of(function)
        if kind in self._resources:
            both = f"{name_of(self._resources[kind])} and {name_of(function)}"
            raise BadRequest(
                f"{both} both make {getattr(kind, '__name__', kind)}",
                hint="give one of them a type of its own, as a subclass or a NewType",
            )
        self._resources[kind] = function

    def add_startup(self, function: Callable[..., Any]) -> None:
        """A hook that runs before the first message."""
        _check_hook(function)
        self._startups.append(function)

    def add_shutdown(self, function: Callable[..., Any]) -> None:
        """A hook that runs after the last handler."""
        _check_hook(function)
        self._shutdowns.append(function)

    @asynccontextmanager
    async def running(self, resources: Resources) -> AsyncIterator[None]:
        """The service's handlers run inside this block."""
        async with AsyncExitStack() as stack:
            stack.callback(resources.close)
            for kind, function in self._resources.items():
                with self._noted("the resource", function):
                    resources.add(kind, await _make(function, resources, stack))
            for function in self._startups:
                with self._noted("the startup hook", function):
                    await _run(function, resources)
            try:
                yield
            except BaseException:
                if error := await self._shut_down(resources):
                    self._log(error)
                raise
            if error := await self._shut_down(resources):
                raise error

    async def _shut_down(self, resources: Resources) -> Exception | None:
        """Run the shutdown hooks. Returns the first error; others are logged."""
        first: Exception | None = None
        for function in reversed(self._shutdowns):
            try:
                with self._noted("the shutdown hook", function):
                    await _run(function, resources)
            except Exception as error:
                if first is None:
                    first = error
                else:
                    self._log(error)
        return first

    @contextmanager
    def _noted(self, what: str, function: Callable[..., Any]) -> Iterator[None]:
        """Add to an error where it happened."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in {what} {name_of(function)} of the service {self._service}")
            raise

    def _log(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{self._service} failed at its end, {error.__notes__[-1]}", "exception": error}
        )


async def _run(function: Callable[..., Any], resources: Resources) -> None:
    plain = is_plain(function)
    await resources.call(function, resources.arguments(function, plain=plain), plain=plain)


async def _make(function: Callable[..., Any], resources: Resources, stack: AsyncExitStack) -> Any:
    """Make a resource, which lives as long as the stack."""
    arguments = resources.arguments(function, plain=False)
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    manage = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
    manager = manage(**arguments)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise BadRequest(
            f"it returned {type(manager).__name__}, which is no async context manager",
            hint="an async generator that yields once, or an async function that returns the value",
        )
    return await stack.enter_async_context(manager)


def _kind_of(function: Callable[..., Any]) -> Any:
    """The type of what a function makes, by its annotation."""
    kind = typing.get_type_hints(function).get("return")
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in _WRAPPING and arguments:
        kind = arguments[0]
    elif inspect.isasyncgenfunction(function):
        kind = None
    if kind in _TAKEN:
        raise BadRequest(
            f"{name_of(function)} doesn't say the type of its resource, by which handlers get it",
            hint=f"async def {name_of(function)}() -> AsyncIterator[Database], with a type of its own",
        )
    return kind


def _check_hook(function: Callable[..., Any]) -> None:
    is_plain(function)
    arguments_of(function)
