"""The HTTP gateway as processes: a terminal that is killed under load, and ``landbridge http`` alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.cli.conftest import LIMIT, Place, Up, finish, read_line
from tests.ports import free_port

MESSAGES = "/v1/topics/orders/messages"
#: Programs that publish at the same time, and messages of each.
PROGRAMS, EACH = 3, 100
#: Seconds in which they give up.
WITHIN = 120.0


def token_of(place: Place) -> str:
    found: str = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())["token"]
    return found


@contextmanager
def up(place: Place, *arguments: str) -> Iterator[tuple[Up, httpx.Client]]:
    with place.up(*arguments) as running:
        assert running.ready["http"]
        headers = {"authorization": f"Bearer {token_of(place)}"}
        with httpx.Client(base_url=running.ready["http"], headers=headers, timeout=LIMIT) as http:
            yield running, http


class Load:
    """Programs that post each message until it is answered, and one that follows the stream."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"}
        self._end = time.monotonic() + WITHIN
        self.receipts: dict[str, int] = {}
        self.seen: list[tuple[int, str]] = []
        self.retried = 0
        self._threads = [threading.Thread(target=self._post, args=(number,)) for number in range(PROGRAMS)]
        self._threads.append(threading.Thread(target=self._follow))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()

    def _post(self, number: int) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=10) as http:
            for count in range(EACH):
                self._post_one(http, f"{number}:{count}")

    def _post_one(self, http: httpx.Client, body: str) -> None:
        key = str(uuid.uuid4())
        while time.monotonic() < self._end:
            try:
                answer = http.post(MESSAGES, content=body, headers={"idempotency-key": key})
            except httpx.HTTPError:
                self.retried += 1
                time.sleep(0.05)
                continue
            if answer.status_code == 201:
                self.receipts[body] = answer.json()["offset"]
                break
            assert answer.status_code == 503, answer.text
            self.retried += 1

    def _follow(self) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=5) as http:
            self._follow_by(http)

    def _follow_by(self, http: httpx.Client) -> None:
        last = ""
        while len(self.seen) < PROGRAMS * EACH and time.monotonic() < self._end:
            headers = {"last-event-id": last} if last else {}
            try:
                with http.stream("GET", "/v1/topics/orders/events?from=earliest", headers=headers) as answer:
                    if answer.status_code != 200:
                        time.sleep(0.05)
                        continue
                    id = data = ""
                    for line in answer.iter_lines():
                        if line.startswith("id: "):
                            id = line[4:]
                        elif line.startswith("data: "):
                            data = line[6:]
                        elif not line and data:  # an event counts when it is whole
                            message = json.loads(data)
                            last, data = id, ""
                            self.seen.append((message["offset"], message["text"]))
                            if len(self.seen) == PROGRAMS * EACH:
                                return
            except httpx.HTTPError:
                time.sleep(0.05)


def test_a_terminal_that_is_killed_under_load_loses_and_doubles_nothing(place: Place) -> None:
    ports = ["--port", str(free_port()), "--http-port", str(free_port())]
    with up(place, *ports) as (running, http):
        assert http.post("/v1/topics", json={"name": "orders"}).status_code == 201
        load = Load(running.ready["http"], token_of(place))
        started = [running.process]
        try:
            with load:
                for share in (1, 2):
                    while len(load.receipts) < share * PROGRAMS * EACH // 4:
                        time.sleep(0.01)
                    started[-1].send_signal(signal.SIGKILL)
                    started[-1].communicate()
                    started.append(place.start("up", "--json", *ports))
                    Up(started[-1])
        finally:
            for process in started:
                process.kill()
                process.communicate()
        assert load.retried
        assert len(load.receipts) == PROGRAMS * EACH
        bodies = [text for _, text in load.seen]
        assert max(Counter(bodies).values()) == 1, "nothing is there twice"
        assert len(bodies) == PROGRAMS * EACH, "nothing is lost"
        assert [offset for offset, _ in load.seen] == list(range(PROGRAMS * EACH))
        assert {text: offset for offset, text in load.seen} == load.receipts


def test_the_gateway_alone_serves_the_terminal_of_a_context(place: Place) -> None:
    with up(place, "--http-port", str(free_port())) as (running, direct):
        process = place.start("http", "--port", "0", "--json")
        ready = json.loads(read_line(process.stdout))
        assert ready["terminal"] == running.ready["url"]
        with httpx.Client(base_url=ready["url"], headers=direct.headers, timeout=LIMIT) as http:
            assert http.post(MESSAGES, json={"n": 1}).json()["offset"] == 0
            pulled = http.post("/v1/topics/orders/groups/g/pull").json()["messages"]
            assert [message["json"] for message in pulled] == [{"n": 1}]
            # Receipts are of the process that gave them.
            path = f"/v1/receipts/{pulled[0]['receipt']}/ack"
            assert direct.post(path).json()["code"] == "lease_lost"
            assert http.post(path).status_code == 204
            assert http.get("/healthz").text == "ok\n"
            assert httpx.get(f"{ready['url']}/v1/topics").status_code == 401
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
        assert (ended.status, "Traceback" in ended.err) == (0, False)


def test_the_paths_of_the_registry(place: Place) -> None:
    with up(place, "--http-port", str(free_port())) as (_, http):
        found = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
        admin = {"authorization": f"Bearer {found['registry_token']}"}
        terminal, registry = http.get("/v1/topics"), http.get("/v1/topics", headers=admin)
        assert (terminal.status_code, registry.status_code) == (200, 200)
        assert set(terminal.json()) == {"topics", "next"}
        assert http.get("/registry/v1/topics", headers=admin).json() == registry.json()
        assert http.get("/registry/v1/topics").status_code == 401
        assert http.get("/v1/registry").status_code == 200
        assert http.get("/v1/openapi.json").json()["info"]["title"] == "Landbridge registry"
        assert any(path.startswith("/registry/v1/") for path in http.get("/openapi.json").json()["paths"])


def test_from_a_credential_to_a_delivered_message_with_curl_alone(place: Place) -> None:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("there is no curl")

    def curl(path: str, *arguments: str) -> Any:
        done = subprocess.run(
            [program, "-sS", "--fail-with-body", "--max-time", str(LIMIT), f"{url}{path}", *arguments],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else None

    with place.up("--http-port", str(free_port())) as running:
        url = running.ready["http"]
        scopes = ["publish:orders", "subscribe:orders"]
        admin = ["-H", f"Authorization: Bearer {token_of(place)}"]
        made = curl("/v1/services", *admin, "-d", json.dumps({"name": "shop", "scopes": scopes}))
        trade = {"service": "shop", "credential": made["credential"]}
        token = ["-H", f"Authorization: Bearer {curl('/v1/token', '-d', json.dumps(trade))['token']}"]
        curl("/v1/topics/orders/messages", *token, "-d", '{"n": 1}', "-H", "Content-Type: application/json")
        pull = curl("/v1/topics/orders/groups/billing/pull?wait=30", *token, "-X", "POST")
        [message] = pull["messages"]
        assert message["json"] == {"n": 1}
        curl(f"/v1/receipts/{message['receipt']}/ack", *token, "-X", "POST")
        with pytest.raises(AssertionError, match="lease_lost"):
            curl(f"/v1/receipts/{message['receipt']}/ack", *token, "-X", "POST")
        wrong = {**trade, "credential": trade["credential"][:-1]}
        with pytest.raises(AssertionError, match="unauthenticated"):
            curl("/v1/token", "-d", json.dumps(wrong))
