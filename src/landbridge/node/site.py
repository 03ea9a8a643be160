"""What the HTTP port of a terminal serves, by path: messages, the registry where one is embedded, metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any, TypeAlias

from landbridge.client.wire import Dial
from landbridge.gateways.metrics import Condition, Metrics

Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

#: The one path under /v1 that is the terminal's and not the registry's, and the document that describes it.
_MESSAGES = re.compile(r"/v1/topics/[^/]+/messages|/v1/messages/openapi\.json")


class Later:
    """An application that is made when the first request comes: its framework takes long to import, and a
    terminal should be up at once."""

    def __init__(self, module: str, make: Callable[[Any], App]) -> None:
        self._module = module
        self._make = make
        self._app: App | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        async with self._making:
            if self._app is None:
                self._app = self._make(await asyncio.to_thread(import_module, self._module))
        await self._app(scope, receive, send)


class Site:
    """The application of the whole port. ``dial`` reaches the terminal. ``registry``: the registry's
    application; None where no registry is embedded. ``condition``: as for the metrics."""

    def __init__(
        self, dial: Dial, registry: App | None = None, condition: Condition = lambda: (True, [])
    ) -> None:
        self._metrics = Metrics(dial, condition)
        self._messages = Later("landbridge.gateways.http", lambda http: http.app(dial))
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await self._app_of(scope["path"])(scope, receive, send)

    def _app_of(self, path: str) -> App:
        if _MESSAGES.fullmatch(path):
            return self._messages
        if self._registry is not None and path.startswith("/v1/"):
            return self._registry
        return self._metrics
