"""The console as an ASGI application: its routes, the sign-in, and how errors are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import structlog
from litestar import Litestar, Request, Response, get, post
from litestar.exceptions import HTTPException, NotFoundException

from landbridge.console import forms, http, stream
from landbridge.console.action import Action
from landbridge.console.http import HTML, JSON, Receive, Scope, Send
from landbridge.console.page import Page, PageView
from landbridge.console.pages import ACTIONS, PAGES
from landbridge.console.rendering import STATIC, static_file
from landbridge.console.samples import Samples
from landbridge.console.screen import Screen
from landbridge.console.sessions import (
    LINK_LIFE,
    MOST_STREAMS,
    SESSION_LIFE,
    SIGN_IN,
    SIGN_IN_HINT,
    ConsoleSession,
    SessionTable,
)
from landbridge.errors import BadRequest, BusError, LimitReached, ShuttingDown, Unauthenticated
from landbridge.protocol.http import Problem, bearer_token, caller_known, problem, problem_of, problem_of_http

log = structlog.get_logger("landbridge.console")

STREAM, SIGN_OUT, LINKS = "/console/stream", "/console/sign-out", "/console/links"
#: Bytes of a form from somebody who is not signed in.
MOST_OF_STRANGERS = 16 << 10
#: Parameters of a page's query, and characters of one.
MOST_PARAMETERS, LONGEST = 32, 4096
#: Bytes of a form that somebody sends who is not signed in.
MOST_OF_STRANGERS = 4096
#: The header by which the module says that it has sent a form.
BY_MODULE = b"console-module"
#: Its value where the page has no stream that would show what is changed.
RELOADS = "reloads"
#: Where a request has its session, or why that can't be told.
SESSION = "landbridge.console.session"
AnyRequest = Request[Any, Any, Any]


class Console:
    """The application. ``sessions``: who has signed in. ``samples``: what is measured for all of them.
    ``terminal``: the terminal's name."""

    def __init__(self, sessions: SessionTable, samples: Samples, terminal: str) -> None:
        self.sessions = sessions
        self._samples = samples
        self._pages: dict[str, Page] = {page.path: page for page in PAGES}
        self._actions: dict[str, Action] = {action.name: action for action in ACTIONS}
        self._screen = Screen(self._pages, self._actions, terminal)
        self._stopping = asyncio.Event()
        self._app = Litestar(
            route_handlers=[
                get(["/", "/console", "/console/{rest:path}"])(self._page),
                get("/console/static/{name:str}", sync_to_thread=False)(self._static),
                get(SIGN_IN)(self._sign_in_page),
                post(SIGN_IN, request_max_body_size=MOST_OF_STRANGERS)(self._sign_in),
                post(SIGN_OUT)(self._sign_out),
                post(LINKS)(self._link),
                post("/console/actions/{name:str}")(self._act),
            ],
            request_max_body_size=forms.MOST_BYTES,
            exception_handlers={
                BusError: self._refuse,
                HTTPException: self._refuse_http,
                Exception: self._refuse_crash,
            },
            openapi_config=None,
            logging_config=None,
            debug=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        send = http.guarded(send)
        if scope["path"] == STREAM and scope["method"] == "GET":
            await self._stream(scope, receive, send)
            return
        if _has_session(scope["path"]):
            # Here, because what shows an error can't wait for the answer of the store.
            await self._look_for_session(scope)
        await self._app(scope, receive, send)  # type: ignore[arg-type]  # the same, in words of Litestar's

    def stop(self) -> None:
        """End the streams. Other requests go on."""
        self._stopping.set()

    async def close(self) -> None:
        """End all sessions."""
        await self.sessions.close()

    # -- who asks ----------------------------------------------------------------------------------

    async def _look_for_session(self, scope: Scope) -> None:
        """Note the session of a request, or why it can't be told."""
        try:
            scope[SESSION] = await self.sessions.find(http.cookies(scope))
        except BusError as error:
            scope[SESSION] = error

    def _session(self, scope: Mapping[str, Any]) -> ConsoleSession:
        found = scope.get(SESSION)
        if isinstance(found, BusError):
            raise found
        if found is None:
            raise Unauthenticated("you are not signed in, or the session has ended", hint=SIGN_IN_HINT)
        caller_known(scope)
        session: ConsoleSession = found
        return session

    def _view(self, session: ConsoleSession, path: str, query: str) -> PageView | None:
        """The view of an address; None where there is no such page."""
        pairs = _pairs_of(query)
        path = "/" if path in ("/console", "/console/") else path
        for page in self._pages.values():
            names = _names_in(path, page.path)
            if names is not None:
                known = {name: value[:LONGEST] for name, value in pairs if name in page.query}
                return PageView(session, self._samples, page, names, known)
        return None

    # -- pages -------------------------------------------------------------------------------------

    async def _page(self, request: AnyRequest) -> Response[bytes]:
        session = self._session(request.scope)
        view = self._view(session, request.scope["path"], _query_of(request.scope))
        if view is None:
            raise NotFoundException(f"there is no page {request.scope['path'][:200]}")
        return _html(*await self._screen.page(view))

    def _static(self, request: AnyRequest) -> Response[bytes]:
        name = request.path_params["name"]
        if name not in STATIC:
            raise NotFoundException(f"there is no file {name[:100]}")
        # The address has the digest of the content.
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._look_for_session(scope)
        try:
            view = self._streamed(scope)
        except Unauthenticated:
            await stream.send_over(send)  # the module tells it; a refusal would be an error of the page
            return
        except BusError as error:
            await _send_problem(send, problem_of(error))
            return
        if view is None:
            await _send_problem(send, problem(404, "not_found", "no page that renews itself is there", ""))
            return
        await stream.serve(self._screen, view, self._stopping, receive, send)

    def _streamed(self, scope: Scope) -> PageView | None:
        if self._stopping.is_set():
            raise ShuttingDown("the console is shutting down")
        session = self._session(scope)
        if session.streams >= MOST_STREAMS:
            raise LimitReached(f"{MOST_STREAMS} pages of this session renew themselves", hint="close one")
        page = dict(_pairs_of(_query_of(scope))).get("page", "")
        try:
            where = urlsplit(page)
        except ValueError as error:
            raise BadRequest(f"the address of the page can't be read: {error}") from None
        view = self._view(session, unquote(where.path), where.query)
        if view is None or not any(each.every for each in view.page.fragments):
            return None
        view.is_live = True
        return view

    # -- actions -----------------------------------------------------------------------------------

    async def _act(self, request: AnyRequest) -> Response[bytes]:
        name = request.path_params["name"]
        session = self._session(request.scope)
        fields = await self._fields(request)
        if not session.is_own_form(forms.first(fields, "csrf")):
            raise BadRequest("the form is not of this session", hint="load the page again")
        action = self._actions.get(name)
        if action is None:
            raise NotFoundException(f"there is no action {name[:60]}")
        back = self._back(session, forms.first(fields, "back"))
        arguments = action.arguments(fields)
        if action.is_confirmed and forms.first(fields, "confirmed") != "yes":
            meaning = [] if action.meaning is None else await action.meaning(session.bus, arguments)
            return self._ask(request, session, action, fields, meaning, back)
        done = await action.run(session.bus, arguments, _origin(request))
        session.tell_pages()
        if not _by_module(request):
            session.notices.append(("ok", done.told))
            if done.secret:
                session.notices.append(("secret", done.secret))
            return _to(done.to or back)
        is_reloaded = not action.stays and http.header(request.scope, BY_MODULE) == RELOADS
        if done.secret:
            shown = self._screen.render("_secret.html", told=done.told, secret=done.secret, to=done.to)
            return _json({"outcome": "shown", "html": shown, "to": done.to})
        return _json({"outcome": "done", "text": done.told, "to": done.to, "reload": is_reloaded})

    def _ask(
        self,
        request: AnyRequest,
        session: ConsoleSession,
        action: Action,
        fields: Any,
        meaning: Any,
        back: str,
    ) -> Response[bytes]:
        echoed = [(name, value) for name, value in fields if name not in forms.OWN]
        whole = not _by_module(request)
        html = self._screen.confirmation(session, action, echoed, meaning, back, whole=whole)
        return _html(html) if whole else _json({"outcome": "confirm", "html": html})

    async def _fields(self, request: AnyRequest) -> forms.Fields:
        http.check_origin(request.scope)
        kind = http.header(request.scope, b"content-type").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise BadRequest(f"a form of the type {kind[:60]!r}", hint="application/x-www-form-urlencoded")
        return forms.read(await request.body())

    def _back(self, session: ConsoleSession, address: str) -> str:
        """The page that a form was on; the first one where that is none of ours."""
        if not address.isascii() or not address.isprintable():
            return "/"  # no header can carry it; the addresses of pages are encoded
        try:
            parts = urlsplit(address)
        except ValueError:
            return "/"
        is_own = not parts.scheme and not parts.netloc and self._view(session, unquote(parts.path), "")
        return address if is_own and not address.startswith("//") else "/"

    # -- signing in --------------------------------------------------------------------------------

    async def _link(self, request: AnyRequest) -> Response[bytes]:
        token = bearer_token(http.header(request.scope, b"authorization"))
        if not token:
            raise Unauthenticated("the request has no token", hint="Authorization: Bearer TOKEN")
        path = await self.sessions.link(token)
        caller_known(request.scope)
        return _json({"path": path, "within": LINK_LIFE}, status=201)

    async def _sign_in_page(self, request: AnyRequest) -> Response[bytes]:
        given = dict(_pairs_of(_query_of(request.scope)))
        code = given.get("code", "")[:LONGEST]
        subject = await self.sessions.waiting_for(code)
        if subject is None:
            raise Unauthenticated("this link was used already, or is too old", hint=SIGN_IN_HINT)
        at_once = _found(request.scope) is None
        return self._ask_to_sign_in(code, subject, at_once=at_once)

    def _ask_to_sign_in(self, code: str, subject: str, *, at_once: bool) -> Response[bytes]:
        page = self._screen.render(
            "sign_in.html", code=code, subject=subject, at_once=at_once, title="Sign in"
        )
        return _html(page)

    async def _sign_in(self, request: AnyRequest) -> Response[bytes]:
        fields = await self._fields(request)
        before = _found(request.scope)
        code = forms.first(fields, "code")
        subject = await self.sessions.waiting_for(code)
        if before is not None and subject is not None and forms.first(fields, "at_once"):
            # Whoever is signed in is asked, so that nobody else's link changes who they are. A link on a page
            # of another site comes without the cookie: only the form that the module sends shows it.
            return self._ask_to_sign_in(code, subject, at_once=False)
        cookie, _ = await self.sessions.sign_in(code)
        caller_known(request.scope)
        if before is not None:
            await self.sessions.sign_out(before)
        return _to("/", {"set-cookie": http.set_cookie(request.scope, cookie, int(SESSION_LIFE))})

    async def _sign_out(self, request: AnyRequest) -> Response[bytes]:
        session = self._session(request.scope)
        fields = await self._fields(request)
        if not session.is_own_form(forms.first(fields, "csrf")):
            raise BadRequest("the form is not of this session", hint="load the page again")
        await self.sessions.sign_out(session)
        page = self._screen.render("signed_out.html", title="Signed out")
        return _html(page, headers={"set-cookie": http.set_cookie(request.scope, "", 0)})

    # -- errors ------------------------------------------------------------------------------------

    def _refuse(self, request: AnyRequest, error: BusError) -> Response[bytes]:
        return self._answer(request, problem_of(error))

    def _refuse_http(self, request: AnyRequest, error: HTTPException) -> Response[bytes]:
        return self._answer(request, problem_of_http(error.status_code, error.detail, error.extra))

    def _refuse_crash(self, request: AnyRequest, crash: Exception) -> Response[bytes]:
        # The text of an unforeseen error may hold a secret: it goes to the log, not into the answer.
        log.error("console crashed", method=request.method, path=request.scope["path"][:200], exc_info=crash)
        return self._refuse(request, BusError("the console failed", hint="see the log of the terminal"))

    def _answer(self, request: AnyRequest, refusal: Problem) -> Response[bytes]:
        """An error as the caller can show it: to a program, to the module, or to a person."""
        if request.scope["path"] == LINKS:
            return Response(refusal.encode(), status_code=refusal.status, headers=refusal.headers)
        if _by_module(request):
            html = self._screen.render("_refusal.html", error=refusal)
            return _json({"outcome": "refused", "html": html}, status=refusal.status)
        session = _found(request.scope)
        titles = {404: "Not found", 403: "Not allowed", 503: "Not now"}
        title = "Sign in" if session is None else titles.get(refusal.status, "That did not work")
        headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
        return _html(self._screen.refusal(session, refusal, title), refusal.status, headers)


def _query_of(scope: Mapping[str, Any]) -> str:
    query: bytes = scope["query_string"]
    return query.decode("latin-1")


def _pairs_of(query: str) -> list[tuple[str, str]]:
    """The parameters of a query. Raises BadRequest."""
    try:
        return parse_qsl(query, max_num_fields=MOST_PARAMETERS, errors="strict")
    except ValueError as error:
        raise BadRequest(f"the query can't be read: {error}") from None


def _names_in(path: str, form: str) -> dict[str, str] | None:
    """The words of a path that stand for the names in a page's path; None where the path is another one."""
    words, form_words = path.split("/"), form.split("/")
    if len(words) != len(form_words):
        return None
    found = {}
    for word, form_word in zip(words, form_words, strict=True):
        if form_word.startswith("{"):
            if not word:
                return None
            found[form_word[1:-1]] = word
        elif word != form_word:
            return None
    return found


def _origin(request: AnyRequest) -> str:
    """Where the browser is."""
    client = request.scope.get("client")
    return "" if client is None else str(client[0])


def _has_session(path: str) -> bool:
    """May an answer to this path be for somebody who is signed in?"""
    return path != LINKS and not path.startswith("/console/static/")


def _found(scope: Mapping[str, Any]) -> ConsoleSession | None:
    """The session of a request, where there is one."""
    found = scope.get(SESSION)
    return found if isinstance(found, ConsoleSession) else None


def _by_module(request: AnyRequest) -> bool:
    return bool(http.header(request.scope, BY_MODULE))


def _html(page: str, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(page.encode(), status_code=status, media_type=HTML, headers=headers or {})


def _json(data: object, status: int = 200) -> Response[bytes]:
    return Response(http.encode(data), status_code=status, media_type=JSON)


def _to(address: str, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(b"", status_code=303, headers={"location": address, **(headers or {})})


async def _send_problem(send: Send, refusal: Problem) -> None:
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.encode()})
