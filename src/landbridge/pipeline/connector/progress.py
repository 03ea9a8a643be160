"""How far a streaming query is, read from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from landbridge.core.log.planning import backlog, from_json


def lag(progress: Mapping[str, Any] | Any) -> dict[str, int]:
    """topic → messages that the query had not read when it reported. ``progress`` is ``query.lastProgress``
    or the progress of a listener's event. A topic of several sources has the sum."""
    document = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    behind: dict[str, int] = {}
    for source in document.get("sources", ()):
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        for topic, count in backlog(end, latest).items():
            behind[topic] = behind.get(topic, 0) + count
    return behind


def reached(progress: Mapping[str, Any]) -> dict[str, int]:
    """topic → offset before which the query has read everything."""
    ends: dict[str, int] = {}
    for source in progress.get("sources", ()):
        ends |= _offsets(source.get("endOffset"))
    return ends


def _offsets(document: Any) -> dict[str, int]:
    """The offsets of a progress event, which may be JSON inside of JSON; empty where they are of another kind
    of source."""
    try:
        document = json.loads(document) if isinstance(document, str) else document
        return from_json(document) if isinstance(document, dict) else {}
    except ValueError:
        return {}
