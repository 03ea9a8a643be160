"""The stream of an open page: server-sent events with the fragments that have changed.

A page has one stream, whatever the number of its fragments. A fragment is sent when its HTML is another one
than before. The module closes the stream of a page that nobody looks at.
"""

from __future__ import annotations

import asyncio
import hashlib

from landbridge.console.http import Receive, Send, encode
from landbridge.console.page import PageView, Unchanged
from landbridge.console.screen import Screen

#: Seconds without an event after which a comment shows that the stream lives.
QUIET = 15.0
#: The least seconds between two renewals of a fragment, also after changes.
LEAST = 0.25
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_OVER = b"event: over\ndata: {}\n\n"


async def serve(
    screen: Screen, view: PageView, stopping: asyncio.Event, receive: Receive, send: Send
) -> None:
    """Send the fragments of a view until the browser leaves, the session ends or the console stops."""
    renewing = asyncio.ensure_future(_renew(screen, view, send))
    ends = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(stopping.wait())]
    view.session.streams += 1
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    try:
        await asyncio.wait([renewing, *ends], return_when=asyncio.FIRST_COMPLETED)
    finally:
        view.session.streams -= 1
        view.session.note_use()
        for task in (renewing, *ends):
            task.cancel()
        await asyncio.wait([renewing, *ends])
    if not renewing.cancelled() and (crash := renewing.exception()) is not None:
        raise crash
    if not ends[0].done() or ends[0].cancelled():
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _renew(screen: Screen, view: PageView, send: Send) -> None:
    loop = asyncio.get_running_loop()
    fragments = [each for each in view.page.fragments if each.every]
    due = {each.name: loop.time() + each.every for each in fragments}
    digests: dict[str, bytes] = {}
    seen = view.session.changes
    quiet_since = loop.time()
    await send(_part(b"retry: 2000\n\n"))
    while not view.session.is_over:
        next_due = min([*due.values(), quiet_since + QUIET])
        before, seen = seen, await view.session.change(seen, max(LEAST, next_due - loop.time()))
        if seen != before:
            due = dict.fromkeys(due, 0.0)
        for fragment in fragments:
            if due[fragment.name] > loop.time():
                continue
            try:
                html, _ = await screen.part(view, fragment.name)
            except Unchanged:
                continue
            finally:
                due[fragment.name] = loop.time() + fragment.every
            digest = hashlib.sha256(html.encode()).digest()
            if digests.get(fragment.name) != digest:
                digests[fragment.name] = digest
                data = encode({"name": fragment.name, "html": html})
                await send(_part(b"event: fragment\ndata: %b\n\n" % data))
                quiet_since = loop.time()
        if loop.time() >= quiet_since + QUIET:
            await send(_part(b": nothing new\n\n"))
            quiet_since = loop.time()
    if view.session.has_ended:
        await send(_part(_OVER))
    # Otherwise the browser asks again, and some node takes the session up.


async def send_over(send: Send) -> None:
    """Answer a stream of a session that has ended."""
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _OVER})


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}
