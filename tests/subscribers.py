"""Subscribers of feeds on ports of this machine, and what they ask the hub for."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.receivers import OK, Received, Receiver, says


@dataclass
class Subscriber:
    """Answers verifications as it is told, and keeps what it gets. Use it with ``async with``."""

    #: What it says to a verification; None: the challenge.
    verdict: bytes | None = None
    #: What it says to content.
    takes: bytes = OK
    secret: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    got: list[Received] = field(default_factory=list)
    path: str = "/callback?who=me"

    async def __aenter__(self) -> Subscriber:
        self.receiver = await Receiver(self._answer).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.receiver.__aexit__()

    @property
    def callback(self) -> str:
        return f"http://127.0.0.1:{self.receiver.port}{self.path}"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.got]

    @property
    def denied(self) -> list[str]:
        return [asked["hub.reason"] for asked in self.asked if asked["hub.mode"] == "denied"]

    def _answer(self, request: Received) -> bytes:
        if request.method == "POST":
            self.got.append(request)
            return self.takes
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        self.asked.append(query)
        if query["hub.mode"] == "denied":
            return OK
        return says(200, body=query["hub.challenge"].encode()) if self.verdict is None else self.verdict

    def is_signed(self, request: Received) -> bool:
        """Whether a request is the hub's, by the secret."""
        wanted = hmac.new(self.secret.encode(), request.body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(request.headers["x-hub-signature"], f"sha256={wanted}")
