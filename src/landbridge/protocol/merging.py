"""From the answers of several nodes to one operation: the answer that the client gets. Answers are as they
come over the wire: dictionaries, lists, texts and numbers.

Lists become one sorted list with its pages. A few answers are merged in a way of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

Answers: TypeAlias = Mapping[str, Any]
#: The operations whose answers are pages of a list: the list's field, and the fields of a row that a page
#: goes on behind, as ``next`` names them.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "topic.list": ("topics", ("name",)),
    "group.list": ("groups", ("topic", "name")),
    "document.list": ("documents", ("topic", "key")),
    "schedule.list": ("schedules", ("topic", "name")),
    "webhook.list": ("webhooks", ("topic", "name")),
    "mail.list": ("mails", ("topic", "name")),
    "sms.list": ("sms", ("topic", "name")),
    "websub.feeds": ("feeds", ("topic",)),
    "websub.list": ("subscriptions", ("topic", "id")),
    "rule.list": ("rules", ("rule",)),
    "service.list": ("services", ("name",)),
}
#: Rows of a page, where the request doesn't say.
PAGE = 1000
#: Groups that are told of as furthest behind.
MOST_BEHIND = 10
_encode = msgspec.json.Encoder().encode
_decode_marks = msgspec.json.Decoder(dict[str, str]).decode


def merge(operation: str, arguments: Mapping[str, Any], answers: Answers, home: str) -> Any:
    """``answers``: by node. ``home``: the node that has the terminal's trust and settings."""
    if operation in PAGES:
        return _pages(operation, arguments, answers, home)
    return _MERGED[operation](answers, home)


def is_mergeable(operation: str) -> bool:
    return operation in PAGES or operation in _MERGED or operation in WATCHED


def _pages(operation: str, arguments: Mapping[str, Any], answers: Answers, home: str) -> dict[str, Any]:
    field, names = PAGES[operation]
    rows = [row for answer in answers.values() for row in answer[field]]
    if operation == "service.list":
        rows = _services([answer[field] for answer in answers.values()], answers[home][field])

    def place(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(row[name] for name in names)

    rows.sort(key=place)
    more = [_place_of(answer["next"], len(names)) for answer in answers.values() if answer["next"]]
    if not more:
        horizon = None
    else:  # behind the end of a node's page there may be rows of it that haven't come
        horizon = min(more)
        rows = [row for row in rows if place(row) <= horizon]
    most = max(1, min(int(arguments.get("limit") or PAGE), PAGE))
    if len(rows) > most:
        rows = rows[:most]
        horizon = place(rows[-1])
    end = next((answer["next"] for answer in answers.values() if _is(answer, horizon, len(names))), "")
    return {field: rows, "next": end or ("" if horizon is None else "/".join(horizon))}


def _is(answer: Mapping[str, Any], horizon: tuple[str, ...] | None, size: int) -> bool:
    return bool(answer["next"]) and _place_of(answer["next"], size) == horizon


def _place_of(after: str, size: int) -> tuple[str, ...]:
    return tuple(after.split("/", 1)) if size > 1 else (after.partition("/")[0],)


def _services(pages: Sequence[list[dict[str, Any]]], home: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the home says of each, with the connections of all nodes."""
    rows = {row["name"]: dict(row, connections=0) for row in home}
    for page in pages:
        for row in page:
            if (known := rows.get(row["name"])) is not None:
                _add_connections(known, row)
    return list(rows.values())


def _add_connections(known: dict[str, Any], row: Mapping[str, Any]) -> None:
    known["connections"] += row["connections"]
    moments = [moment for moment in (known.get("seen_at"), row.get("seen_at")) if moment is not None]
    if moments:
        known["seen_at"] = max(moments)


def _service(answers: Answers, home: str) -> dict[str, Any]:
    found = dict(answers[home], connections=0)
    for answer in answers.values():
        _add_connections(found, answer)
    return found


def _ping(answers: Answers, home: str) -> dict[str, Any]:
    found = _service(answers, home)
    ages = [answer["age"] for answer in answers.values() if answer.get("age") is not None]
    found["age"] = min(ages, default=None)
    found["answered"] = any(answer.get("answered") for answer in answers.values())
    return found


def _info(answers: Answers, home: str) -> dict[str, Any]:
    found = dict(answers[home])
    for name in ("topics", "connections"):
        found[name] = sum(answer[name] for answer in answers.values())
    free = [answer["free"] for answer in answers.values() if answer["free"] is not None]
    found["free"] = min(free, default=None)
    found["low"] = any(answer["low"] for answer in answers.values())
    found["damage"] = [each for answer in answers.values() for each in answer["damage"]]
    # A service that is paused is told by every node.
    found["paused"] = list(dict.fromkeys(each for answer in answers.values() for each in answer["paused"]))
    return found


def _dictionaries(answers: Answers, home: str) -> dict[str, Any]:
    return {key: value for answer in answers.values() for key, value in answer.items()}


def _lists(field: str) -> Callable[[Answers, str], dict[str, Any]]:
    def merged(answers: Answers, home: str) -> dict[str, Any]:
        return {field: [row for answer in answers.values() for row in answer[field]]}

    return merged


def _first(answers: Answers, home: str) -> Any:
    return next(iter(answers.values()))


def _figures(answers: Answers, home: str) -> dict[str, Any]:
    found = dict(answers[home])
    for name, value in found.items():
        if name not in ("time", "started_at", "free") and type(value) in (int, float):
            found[name] = sum(answer[name] for answer in answers.values())
    free = [answer["free"] for answer in answers.values() if answer["free"] is not None]
    found["free"] = min(free, default=None)
    found["low"] = any(answer["low"] for answer in answers.values())
    found["troubles"] = [each for answer in answers.values() for each in answer["troubles"]]
    behind = [row for answer in answers.values() for row in answer["behind"]]
    found["behind"] = sorted(behind, key=lambda row: -row["lag"])[:MOST_BEHIND]
    return found


def _letters(answers: Answers, home: str) -> dict[str, Any]:
    rows = [row for answer in answers.values() for row in answer["causes"]]
    rows.sort(key=lambda row: (row["topic"], row["group"], row["cause"]))
    whole = all(answer["whole"] for answer in answers.values()) and len(rows) <= PAGE
    counts = {
        name: sum(answer.get(name, 0) for answer in answers.values()) for name in ("looked_at", "stored")
    }
    return {"causes": rows[:PAGE], "whole": whole, **counts}


_MERGED: dict[str, Callable[[Answers, str], Any]] = {
    "terminal.info": _info,
    "terminal.figures": _figures,
    "letter.summary": _letters,
    "service.show": _service,
    "service.ping": _ping,
    "message.where": _lists("places"),
    "message.why": _first,
    "topic.wait": _dictionaries,
    "topic.seek_time": _dictionaries,
    "websub.call": _first,
}


# -- watches -------------------------------------------------------------------------------------------

#: The operations that wait for news of all nodes: the field of the request that says what the caller knows,
#: and that of the answer that says it anew.
WATCHED = {"topic.watch": ("since", "since"), "document.wait": ("after", "after")}


def marks_of(mark: str, nodes: Sequence[str]) -> dict[str, str]:
    """Node → the word by which it knows what the caller has seen; empty where it has to begin."""
    try:
        known = _decode_marks(mark) if mark else {}
    except (msgspec.MsgspecError, RecursionError):
        known = {}
    return {node: known.get(node, "") for node in nodes}


def mark_of(marks: Mapping[str, str]) -> str:
    return _encode(dict(sorted(marks.items()))).decode()


def is_news(operation: str, answer: Mapping[str, Any]) -> bool:
    if operation == "document.wait":
        return bool(answer["missed"] or answer["changes"])
    return bool(answer["whole"] or answer["topics"] or answer["gone"])


def is_new_list(operation: str, answer: Mapping[str, Any]) -> bool:
    """Must the caller begin anew? Then all nodes have to be asked from the beginning."""
    return bool(answer["missed"] if operation == "document.wait" else answer["whole"])


def merge_news(operation: str, answers: Answers, marks: Mapping[str, str]) -> dict[str, Any]:
    """The news of some nodes, and the words to go on with for all."""
    field = WATCHED[operation][1]
    marks = {**marks, **{node: answer[field] for node, answer in answers.items()}}
    if operation == "document.wait":
        changes = [change for answer in answers.values() for change in answer["changes"]]
        missed = any(answer["missed"] for answer in answers.values())
        return {"changes": changes, "after": mark_of(marks), "missed": missed}
    topics = sorted(name for answer in answers.values() for name in answer["topics"])
    # A topic that is gone at one node may have come to another one.
    gone = sorted({name for answer in answers.values() for name in answer["gone"]} - set(topics))
    return {
        "topics": topics[:PAGE],
        "gone": gone,
        "whole": any(answer["whole"] for answer in answers.values()),
        "more": sum(answer["more"] for answer in answers.values()) + max(0, len(topics) - PAGE),
        "since": mark_of(marks),
    }
