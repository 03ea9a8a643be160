"""A query, as a document: what its kind is, and what it looks for. Its canonical form, and the name of its
topic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from landbridge.core.names import CONTENT_TOPIC, RULE_TOPIC_DIGITS
from landbridge.core.options import read_options
from landbridge.core.rules.bounds import LARGEST_QUERY, describe
from landbridge.core.rules.pattern import canonical_pattern
from landbridge.errors import BadRequest

HINT = 'as in {"kind": "jsonpath", "path": "$.items[?@.price > 100]"}'

Kind = Literal["partial", "regexp", "jsonpath"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class PartialQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that a message must have: a pattern in the manner of EventBridge."""

    kind: Literal["partial"] = "partial"
    match: dict[str, Any]


class RegexpQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A regular expression of RE2 that is searched for in one text of the message."""

    kind: Literal["regexp"] = "regexp"
    pattern: str
    #: Where it is searched for: "payload", "key", "header:NAME", or "ce:NAME".
    place: str = "payload"


class JsonPathQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A query of RFC 9535 that has to select at least one node."""

    kind: Literal["jsonpath"] = "jsonpath"
    path: str
    #: What is ``$``: the payload, or an object of payload, key and headers.
    place: Literal["payload", "message"] = "payload"


Query: TypeAlias = PartialQuery | RegexpQuery | JsonPathQuery

_STRUCTS: Mapping[str, type[PartialQuery] | type[RegexpQuery] | type[JsonPathQuery]] = {
    "partial": PartialQuery,
    "regexp": RegexpQuery,
    "jsonpath": JsonPathQuery,
}


class Rule(msgspec.Struct, frozen=True):
    """A query with the name that its results have."""

    id: str
    query: Query


def read_query(raw: object) -> Query:
    """The query that a JSON document means. A document without a kind is the pattern of a partial query:
    there, ``kind`` would be an array. Raises BadRequest that names the place."""
    if not isinstance(raw, dict):
        raise BadRequest(f"a query is an object, not {describe(raw)}", hint=HINT)
    kind = raw.get("kind")
    if not isinstance(kind, str):
        kind, raw = "partial", {"match": raw}
    elif kind not in _STRUCTS:
        raise BadRequest(f"kind: there is no kind of query {kind[:60]!r}", hint=f"one of: {', '.join(KINDS)}")
    query: Query = read_options(raw, _STRUCTS[kind], "query")
    canonical(query)
    return query


def document_of(query: Query) -> dict[str, Any]:
    """A query as a document, in its canonical form."""
    found: dict[str, Any] = msgspec.json.decode(canonical(query))
    return found


def canonical(query: Query) -> bytes:
    """The canonical form of a query: JSON with sorted names and with all defaults. Two partial queries that
    differ only in the order of fields or of alternatives, or in how a number is written, have the same
    one."""
    document: dict[str, Any]
    if isinstance(query, PartialQuery):
        document = {"kind": query.kind, "match": canonical_pattern(query.match)}
    else:
        document = msgspec.to_builtins(query)
    try:
        encoded = msgspec.json.encode(document, order="sorted")
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the query can't be written as JSON: {error}") from None
    if len(encoded) > LARGEST_QUERY:
        raise BadRequest(f"a query of {len(encoded):,} bytes, allowed are {LARGEST_QUERY:,}")
    return encoded


def topic_of(query: Query, source: str = CONTENT_TOPIC) -> str:
    """The topic of the messages that a query chooses of a source. The same query has the same topic
    everywhere."""
    digest = hashlib.sha256(canonical(query) + b"\0" + source.encode()).hexdigest()
    return f"match.{digest[:RULE_TOPIC_DIGITS]}"
