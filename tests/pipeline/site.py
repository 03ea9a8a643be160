"""What a test of the pipeline works with: topics of its own, and readers and writers that know the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import landbridge.sync
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.errors import UnknownTopic
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import run_terminal


@contextmanager
def terminal_at(path: Path, limits: Limits | None = None) -> Iterator[Terminal]:
    """On disk and on a port, its loop in a thread: Spark's processes come from outside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = run_terminal(JournalStore(path), port=0, limits=limits)

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    yield wait(running.__aenter__())
    wait(running.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def site_at(path: Path, folder: Path, name: str) -> Iterator[Site]:
    """A terminal of a test's own."""
    with terminal_at(path) as terminal:
        token = terminal.issue_token("spark", ["admin"], 3600)
        with landbridge.sync.connect(terminal.url, token=token) as bus:
            yield Site(terminal.url, token, bus, folder, name)


@dataclass
class Site:
    url: str
    token: str = field(repr=False)
    bus: landbridge.sync.Bus
    folder: Path
    name: str

    def topic(self, which: str = "orders") -> str:
        return f"{self.name}.{which}"

    @property
    def access(self) -> dict[str, str]:
        return {"url": self.url, "token": self.token}

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    def publish(self, count: int, which: str = "orders", first: int = 0, **options: Any) -> None:
        with self.bus.publisher(self.topic(which)) as out:
            for n in range(first, first + count):
                out.send(b"%d" % n, **options)

    def make_anew(self, count: int, which: str = "orders", first: int = 0) -> None:
        """The topic again, with other messages."""
        self.bus.call("topic.delete", name=self.topic(which), force=True)
        self.publish(count, which, first)

    def rows(self, which: str = "orders") -> list[bytes]:
        """What stands in the topic's log, in order."""
        found: list[bytes] = []
        try:
            while batches := self.bus.fetch(self.topic(which), len(found)).batches:
                found += [payload for each in batches for payload in each.batch.payloads()]
        except UnknownTopic:
            pass
        return found

    def read(self, spark: Any, which: str = "orders", **options: Any) -> Any:
        return self._load(spark.read, which, options)

    def read_stream(self, spark: Any, which: str = "orders", **options: Any) -> Any:
        return self._load(spark.readStream, which, {"startingOffsets": "earliest", **options})

    def _load(self, reader: Any, which: str, options: dict[str, Any]) -> Any:
        if not {"subscribePattern", "assign"} & set(options):
            options = {"subscribe": self.topic(which), **options}
        return reader.format("landbridge").options(**self.access, **options).load()

    def write(self, frame: Any, which: str = "copy", **options: Any) -> None:
        options = {"topic": self.topic(which), **self.access, **options}
        frame.write.format("landbridge").options(**options).mode("append").save()

    def write_stream(self, frame: Any, which: str = "copy", **options: Any) -> Any:
        options = {
            "topic": self.topic(which),
            "checkpointLocation": self.checkpoint,
            **self.access,
            **options,
        }
        return frame.writeStream.format("landbridge").options(**options)
