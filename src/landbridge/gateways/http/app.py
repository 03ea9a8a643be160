"""The HTTP gateway as one ASGI application: finds the route, and answers errors by problem documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from msgspec.structs import replace

from landbridge.client.wire import Dial
from landbridge.errors import BusError
from landbridge.gateways.http import catalogue, openapi, reference
from landbridge.gateways.http.cross_origin import CrossOrigin
from landbridge.gateways.http.exchange import ClientGone, HttpRequest, Receive, Scope, Send
from landbridge.gateways.http.routes import RouteTree
from landbridge.gateways.http.sessions import AnswerStranger, SessionPool
from landbridge.gateways.http.websocket import STREAM, serve_stream
from landbridge.protocol.http import Problem, problem, problem_of

log = structlog.get_logger("landbridge.http")


class HttpGateway:
    """The application. ``dial`` reaches the terminal, as for a Bus. ``origins``: the web sites whose pages
    may use it from a browser, none by default. ``with_registry``: a registry answers at the same port, so it
    is in the document too. ``answer_stranger``: see SessionPool."""

    def __init__(
        self,
        dial: Dial,
        *,
        origins: Iterable[str] = (),
        with_registry: bool = False,
        answer_stranger: AnswerStranger | None = None,
    ) -> None:
        self.pool = SessionPool(dial, answer_stranger)
        self._origins = CrossOrigin(origins)
        self._routes = catalogue.ROUTES
        self._tree = RouteTree(self._routes)
        self._with_registry = with_registry
        #: The document and the page, once somebody has asked for them.
        self._documents: dict[str, tuple[bytes, bytes]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        if scope["type"] == "websocket":
            await serve_stream(self.pool, self._origins, scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway speaks http, not {scope['type']}")
        if self._origins:
            send = self._origins.answering(scope, send)
        request: HttpRequest | None = None
        try:
            request = HttpRequest(scope, receive, send)
            await self._serve(request)
        except ClientGone:
            pass
        except BusError as error:
            await self._refuse(scope, receive, send, request, error)
        except Exception as crash:
            # The text of an unforeseen error may hold a secret: it goes to the log, not into the answer.
            log.error("request crashed", method=scope["method"], path=scope["path"][:200], exc_info=crash)
            failed = BusError("the gateway failed", hint="see the log of the terminal")
            await self._refuse(scope, receive, send, request, failed)

    def serves(self, raw_path: bytes) -> bool:
        """Is there anything at this path?"""
        try:
            return raw_path == STREAM.encode() or self._tree.find(raw_path)[0] is not None
        except BusError:
            return False

    async def _serve(self, request: HttpRequest) -> None:
        scope = request.scope
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        if request.method == "OPTIONS" and self._origins.is_preflight(request):
            await self._origins.answer_preflight(request)
            return
        branch, values = self._tree.find(raw_path)
        if branch is None:
            await self._others(request, scope["path"])
            return
        found = branch.by_verb.get(request.method)
        if found is None:
            verbs = ", ".join(branch.by_verb)
            refusal = problem(405, "bad_method", f"{request.method[:20]} of this path", f"it takes {verbs}")
            await request.refuse(_traced(refusal, request), [(b"allow", verbs.encode())])
            return
        route, names = found
        request.path_names = dict(zip(names, values, strict=True))
        await route.answer(self.pool, request)

    async def _others(self, request: HttpRequest, path: str) -> None:
        """The documents, and paths that there are none of."""
        if path not in ("/openapi.json", "/docs", "/docs/style.css", STREAM):
            hint = "see /docs for the paths that there are"
            await request.refuse(
                _traced(problem(404, "not_found", f"there is no {path[:200]}", hint), request)
            )
        elif path == STREAM:
            refusal = problem(426, "upgrade_required", "this path is a WebSocket", "see /docs")
            await request.refuse(_traced(refusal, request), [(b"upgrade", b"websocket")])
        elif request.method != "GET":
            refusal = problem(405, "bad_method", f"{path} can only be read", "use GET")
            await request.refuse(_traced(refusal, request), [(b"allow", b"GET")])
        else:
            body, kind = await asyncio.to_thread(self._document, path)
            await request.answer(200, body, kind, reference.HEADERS if path == "/docs" else ())

    def _document(self, path: str) -> tuple[bytes, bytes]:
        if path not in self._documents:
            whole = openapi.document(self._routes, with_registry=self._with_registry)
            self._documents = {
                "/openapi.json": (openapi.encode(whole), b"application/json"),
                "/docs": (reference.page(whole), b"text/html; charset=utf-8"),
                "/docs/style.css": (reference.STYLE.encode(), b"text/css; charset=utf-8"),
            }
        return self._documents[path]

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, request: HttpRequest | None, error: BusError
    ) -> None:
        if request is None:  # its head is what is wrong
            await HttpRequest({**scope, "headers": []}, receive, send).refuse(problem_of(error))
        elif request.is_answered:
            # The answer has begun: to break it off is the only way to say that it is not whole.
            raise RuntimeError(f"an answer was broken off: {error}") from error
        else:
            await request.refuse(_traced(problem_of(error), request))

    def stop(self) -> None:
        """End streams and long waits. Other requests go on."""
        self.pool.stopping.set()

    async def close(self) -> None:
        """Disconnect from the terminal."""
        await self.pool.close()


def _traced(refusal: Problem, request: HttpRequest) -> Problem:
    return replace(refusal, trace_id=request.trace_id)
