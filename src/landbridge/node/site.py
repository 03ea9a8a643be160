"""What the HTTP port of a terminal serves, by path: the gateway, the console, the registry where one is
embedded, metrics.

The registry and the terminal have some paths in common, as ``/v1/topics``. The registry's are those under
``/registry/v1``. For the programs of version 0.1 they are also under ``/v1``: for whoever shows a credential
of the registry or the proof of a terminal, and where the terminal has no such path (ADR 26).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

from landbridge.broker.figures import GatewayFigure
from landbridge.client.wire import Dial
from landbridge.core.trust import credential
from landbridge.errors import BadRequest
from landbridge.gateways.metrics import Condition, Metrics
from landbridge.protocol.http import bearer_token

Scope: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

#: Where Socket.IO is: its clients look for it there.
SOCKETIO = "/socket.io/"
#: Where MQTT over WebSockets is: clients look for it there.
MQTT = "/mqtt"
#: Where the registry is, whatever the credential.
REGISTRY = "/registry"
#: Paths that tell how the process is.
_CONDITION = ("/metrics", "/healthz", "/readyz")
#: The header by which a terminal names itself to the registry.
_TERMINAL = b"landbridge-terminal"
#: How the credentials of the registry begin.
_CREDENTIALS = (credential.ADMIN, credential.ENROLMENT)


class Later:
    """An application that is made when the first request comes: its framework takes long to import, and a
    terminal should be up at once."""

    def __init__(self, module: str, make: Callable[[Any], App]) -> None:
        self._module = module
        self._make = make
        #: None until the first request.
        self.app: Any = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await (await self.made())(scope, receive, send)

    async def made(self) -> Any:
        """The application."""
        if self.app is None:
            async with self._making:
                if self.app is None:
                    self.app = self._make(await asyncio.to_thread(import_module, self._module))
        return self.app


class Site:
    """The application of the whole port. ``dial`` reaches the terminal. ``registry``: the registry's
    application; None where no registry is embedded. ``condition``: as for the metrics. ``origins``: the web
    sites whose pages may use the gateway. ``answer_stranger``: as for the gateway. ``console``: the console's
    application; None where there is none. ``socketio``: serve Socket.IO, too."""

    def __init__(
        self,
        dial: Dial,
        registry: App | None = None,
        condition: Condition = lambda: (True, []),
        console: Later | None = None,
        *,
        origins: Iterable[str] = (),
        answer_stranger: Any = None,
        socketio: bool = False,
    ) -> None:
        if socketio and find_spec("socketio") is None:
            raise BadRequest(
                "Socket.IO needs python-socketio, which is not installed",
                hint="pip install 'landbridge[socketio]'",
            )
        self._metrics = Metrics(dial, condition)
        options: dict[str, Any] = {"origins": tuple(origins), "with_registry": registry is not None}
        self._gateway = Later(
            "landbridge.gateways.http",
            lambda http: http.HttpGateway(dial, **options, answer_stranger=answer_stranger),
        )
        self._registry = registry
        self._console = console
        #: Serves MQTT over WebSockets at this path; None: the terminal serves no MQTT.
        self.mqtt: App | None = None
        self.origins = tuple(origins)
        self._socketio: Later | None = None
        if socketio:
            self._socketio = Later(
                "landbridge.gateways.socketio",
                lambda gateways: gateways.SocketGateway(
                    self._gateway.app.pool, options["origins"], lambda *noted: self.note(*noted)
                ),
            )
        #: Tells the status log of what went wrong: the cause, how often, and an example.
        self.note: Callable[[str, int, str], None] = lambda *_: None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path: str = scope["path"]
        if self.mqtt is not None and path == MQTT and scope["type"] == "websocket":
            await self.mqtt(scope, receive, send)
            return
        if self._socketio is not None and path.startswith(SOCKETIO):
            await self._gateway.made()  # whose connections to the terminal it shares
            await self._socketio(scope, receive, send)
            return
        if scope["type"] == "http" and path in _CONDITION:
            await self._metrics(scope, receive, send)
        elif self._console is not None and scope["type"] == "http" and _is_of_console(path):
            await self._console(scope, receive, send)
        elif self._registry is None or scope["type"] != "http":
            await self._gateway(scope, receive, send)
        elif path.startswith(f"{REGISTRY}/"):
            await self._registry(_without(scope, REGISTRY), receive, send)
        elif path.startswith("/v1/") and await self._is_for_registry(scope):
            await self._registry(scope, receive, send)
        else:
            await self._gateway(scope, receive, send)

    async def _is_for_registry(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == _TERMINAL:
                return True
            if name == b"authorization" and bearer_token(value.decode("latin-1")).startswith(_CREDENTIALS):
                return True
        gateway = await self._gateway.made()
        return not gateway.serves(scope.get("raw_path") or scope["path"].encode())

    def stop(self) -> None:
        """End streams and long waits. Other requests go on."""
        for app in _made(self._gateway, self._console):
            app.stop()

    async def close(self) -> None:
        """Disconnect from the terminal. What uses the gateway's connections is closed before the gateway."""
        for app in _made(self._socketio, self._gateway, self._console):
            await app.close()

    def figures(self) -> Iterable[GatewayFigure]:
        """What gateways of the port add to the terminal's metrics."""
        if self._socketio is None or self._socketio.app is None:
            return ()
        found: Iterable[GatewayFigure] = self._socketio.app.figures()
        return found


def _without(scope: Scope, prefix: str) -> Scope:
    """The request as if its path began after the prefix."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return {
        **scope,
        "path": scope["path"].removeprefix(prefix),
        "raw_path": raw_path.removeprefix(prefix.encode()),
    }


def _made(*applications: Later | None) -> list[Any]:
    """Those of the applications that are there, and that a request has asked for."""
    return [each.app for each in applications if each is not None and each.app is not None]


def _is_of_console(path: str) -> bool:
    return path == "/" or path == "/console" or path.startswith("/console/")
