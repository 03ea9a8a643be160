"""A provider of SMS on a port of this machine, in Twilio's shape: for tests, and for trying things out.

    async with SmsProvider("AC123", "secret") as provider:
        profile = SmsProfile(url=provider.url)
        ...
        provider.sent                       # what it was asked to send
        await provider.receive("+15550000001", "hello", url)    # an SMS comes in

It checks the account, takes the form, answers with a ``sid``, and tells the status callback what became of
the SMS. ``answer`` says what it does instead: refuse, throttle, lose the connection.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import httpx
import msgspec

from landbridge.core.sms.outgoing import sign_as_twilio
from landbridge.core.sms.segments import size_of

#: Bytes of a request's head, and of its body.
MOST_HEAD, MOST_BODY = 32 << 10, 64 << 10
#: In the place of an answer: the connection ends, after the SMS was taken, or before.
LOSE, LOSE_BEFORE = (0, "lost after"), (0, "lost before")
#: An SMS is taken.
TAKE = (201, "")


@dataclass(frozen=True)
class SentSms:
    """An SMS that the provider was asked to send."""

    sid: str
    to: str
    sender: str
    body: str
    #: Where the status is told; empty: nowhere.
    callback: str
    segments: int


@dataclass
class SmsProvider:
    """Use it with ``async with``. ``answer``: what it says to a request, by its number from 1: TAKE, LOSE, or
    a status of HTTP and a text. ``statuses``: what it tells the callback of each SMS, one after the other."""

    account: str = "AC00000000000000000000000000000000"
    secret: str = "secret"
    answer: Callable[[int], tuple[int, str]] = lambda number: TAKE
    statuses: tuple[str, ...] = ("sent", "delivered")
    #: Seconds that an answer with 429 asks for.
    retry_after: int = 1
    port: int = 0
    sent: list[SentSms] = field(default_factory=list)
    #: Requests so far, those included that were refused.
    requests: int = 0
    #: What callbacks were answered, each by its status of HTTP; 0: there was no answer.
    callbacks: list[int] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """For the profile."""
        return f"http://127.0.0.1:{self.port}/2010-04-01/Accounts/{{{{ account }}}}/Messages.json"

    async def __aenter__(self) -> SmsProvider:
        self._numbers = itertools.count(len(self.sent) + 1)
        self._client = httpx.AsyncClient(trust_env=False, timeout=10.0)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=MOST_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        for _turn in range(5):  # what was aborted is closed in a turn of the loop or two
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Wait until all callbacks that are due were made."""
        while calls := [task for task in self._tasks if task.get_name() == "callbacks"]:
            await asyncio.wait(calls)

    async def receive(self, sender: str, body: str, url: str, to: str = "+15550000000") -> int:
        """An SMS comes in: tell this URL. Returns the status of its answer."""
        sid = f"SM{next(self._numbers):032x}"
        return await self.call(url, {"MessageSid": sid, "From": sender, "To": to, "Body": body})

    async def call(self, url: str, fields: dict[str, str]) -> int:
        """Call back, signed. Returns the status of the answer, 0 where there is none."""
        signature = sign_as_twilio(self.secret, url, list(fields.items()))
        try:
            answer = await self._client.post(url, data=fields, headers={"X-Twilio-Signature": signature})
            status = answer.status_code
        except httpx.HTTPError:
            status = 0
        self.callbacks.append(status)
        return status

    # -- what it is asked --------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the sender has gone
        except asyncio.CancelledError:
            pass  # the provider ends; asyncio's streams would report it as a crash
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False: the connection ends."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(min(MOST_BODY, int(headers.get("content-length", 0))))
        self.requests += 1
        status, text = self.answer(self.requests)
        if (status, text) == LOSE_BEFORE:
            return False
        if (status, text) in (TAKE, LOSE):
            refusal = self._refusal(first, headers)
            status, answer = refusal or self._take(dict(parse_qsl(body.decode())), lost=not status)
            if not status:
                return False
        else:
            answer = {"code": status, "message": text, "status": status}
        said = msgspec.json.encode(answer)
        more = f"Retry-After: {self.retry_after}\r\n" if status == 429 else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}"
        writer.write(f"{head}Content-Length: {len(said)}\r\n\r\n".encode() + said)
        await writer.drain()
        return True

    def _refusal(self, first: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]] | None:
        pair = base64.b64encode(f"{self.account}:{self.secret}".encode()).decode()
        if headers.get("authorization") != f"Basic {pair}":
            return 401, {"code": 20003, "message": "Authenticate", "status": 401}
        if first.split()[:2] != ["POST", f"/2010-04-01/Accounts/{self.account}/Messages.json"]:
            return 404, {"code": 20404, "message": "The requested resource was not found", "status": 404}
        return None

    def _take(self, fields: dict[str, str], *, lost: bool) -> tuple[int, dict[str, Any]]:
        to, body = fields.get("To", ""), fields.get("Body", "")
        if not to.startswith("+") or not to[1:].isdecimal():
            return 400, {"code": 21211, "message": f"The 'To' number {to} is not valid.", "status": 400}
        sid = f"SM{next(self._numbers):032x}"
        sms = SentSms(
            sid, to, fields.get("From", ""), body, fields.get("StatusCallback", ""), size_of(body).segments
        )
        self.sent.append(sms)
        if sms.callback:
            task = asyncio.get_running_loop().create_task(self._tell(sms), name="callbacks")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        segments = str(sms.segments)
        return (0 if lost else 201), {"sid": sid, "status": "queued", "num_segments": segments, "to": to}

    async def _tell(self, sms: SentSms) -> None:
        for status in self.statuses:
            fields = {"MessageSid": sms.sid, "MessageStatus": status, "To": sms.to, "From": sms.sender}
            await self.call(sms.callback, fields)
