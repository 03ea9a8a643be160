"""How far a streaming query is, from what Spark says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from landbridge.core.log.planning import backlog, from_json


def lag(progress: Mapping[str, Any] | Any) -> dict[str, int]:
    """topic → messages that the query hadn't read when it reported, from ``query.lastProgress`` or the
    progress of a listener's event. Topics of several sources are added up."""
    document = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    behind: dict[str, int] = {}
    for source in document.get("sources", ()):
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        for topic, count in backlog(end, latest).items():
            behind[topic] = behind.get(topic, 0) + count
    return behind


def reached(progress: Mapping[str, Any]) -> dict[str, int]:
    """topic → offset before which the query has everything, once it has reported this progress."""
    ends: dict[str, int] = {}
    for source in progress.get("sources", ()):
        ends |= _offsets(source.get("endOffset"))
    return ends


def _offsets(said: Any) -> dict[str, int]:
    """An offset of a progress event, which may be JSON in JSON; empty if it is another source's."""
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            return {}
    try:
        return from_json(said) if isinstance(said, dict) else {}
    except ValueError:
        return {}
