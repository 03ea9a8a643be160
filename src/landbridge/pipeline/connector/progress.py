"""How far a streaming query is, read from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from landbridge.core.log.planning import LogPosition, backlog, from_json, offsets_of, starts


def lag(progress: Mapping[str, Any] | Any) -> dict[str, int]:
    """topic → messages that the query had not read when it reported. ``progress`` is ``query.lastProgress``
    or the progress of a listener's event. A topic of several sources has the sum."""
    document = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    behind: dict[str, int] = {}
    for source in document.get("sources", ()):
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        for topic, count in backlog(starts(end, latest), offsets_of(latest)).items():
            behind[topic] = behind.get(topic, 0) + count
    return behind


def reached(progress: Mapping[str, Any]) -> dict[str, LogPosition]:
    """topic → position before which the query has read everything."""
    ends: dict[str, LogPosition] = {}
    for source in progress.get("sources", ()):
        ends |= _offsets(source.get("endOffset"))
    return ends


class ReadsFiles(Protocol):
    """A folder."""

    def read(self, path: str) -> bytes: ...


def checkpointed(checkpoint: ReadsFiles, batch: int) -> dict[str, LogPosition]:
    """topic → position at which a micro-batch ends, from the checkpoint of a query with one source. Spark
    writes it down before the micro-batch runs: a version, a line of its own, and a line per source."""
    return _offsets(checkpoint.read(f"offsets/{batch}").decode().rstrip().splitlines()[-1])


def _offsets(document: Any) -> dict[str, LogPosition]:
    """The positions of a progress event, which may be JSON inside of JSON; empty where they are of another
    kind of source."""
    try:
        document = json.loads(document) if isinstance(document, str) else document
        return from_json(document) if isinstance(document, dict) else {}
    except ValueError:
        return {}
