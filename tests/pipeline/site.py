"""What a test of the pipeline works with: topics of its own, and readers and writers that know the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import landbridge.sync
from landbridge.errors import UnknownTopic


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
