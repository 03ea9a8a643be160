"""Which path is answered by what: a tree of the segments of all paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from landbridge.errors import BadRequest
from landbridge.gateways.http.exchange import HttpRequest
from landbridge.gateways.http.sessions import SessionPool

AnswerRequest: TypeAlias = Callable[[SessionPool, HttpRequest], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Described:
    """What the OpenAPI document says of a route beside its path."""

    #: Its operationId.
    name: str
    summary: str
    description: str = ""
    tag: str = "messages"
    #: Parameters of the query and headers of the request: name → (schema, what it means).
    query: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    headers: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    #: By media type: the body as a type, or as a schema; and an example.
    bodies: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    needs_body: bool = True
    #: By status: what it means, and the forms of the body by media type.
    answers: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    #: Statuses of refusals.
    refusals: tuple[int, ...] = (400, 401, 403, 429, 503)
    needs_token: bool = True


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A verb and a path, and who answers it."""

    verb: str
    #: Names in braces stand for one segment each.
    path: str
    answer: AnswerRequest
    described: Described


class Branch:
    """A place in the tree."""

    __slots__ = ("by_name", "by_verb", "named")

    def __init__(self) -> None:
        #: The segments that may follow, and the place where any other segment leads.
        self.by_name: dict[str, Branch] = {}
        self.named: Branch | None = None
        #: What is answered here, with the names of the segments that led here by being any.
        self.by_verb: dict[str, tuple[HttpRoute, tuple[str, ...]]] = {}


class RouteTree:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._root = Branch()
        for route in routes:
            self._add(route)

    def _add(self, route: HttpRoute) -> None:
        branch, names = self._root, []
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                branch.named = branch.named or Branch()
                branch = branch.named
            else:
                branch = branch.by_name.setdefault(segment, Branch())
        branch.by_verb.setdefault(route.verb, (route, tuple(names)))

    def find(self, raw_path: bytes) -> tuple[Branch | None, list[str]]:
        """The place of a path, and the segments that stand for names."""
        try:
            segments = raw_path.decode("ascii").split("/")[1:]
            if b"%" in raw_path:
                segments = [unquote(segment, errors="strict") for segment in segments]
        except UnicodeDecodeError:
            raise BadRequest("the path is not UTF-8") from None
        return _walk(self._root, segments, 0, [])


def _walk(branch: Branch, segments: list[str], at: int, values: list[str]) -> tuple[Branch | None, list[str]]:
    """A segment that is spelled out goes before one that may be any."""
    if at == len(segments):
        return (branch if branch.by_verb else None), values
    segment = segments[at]
    if segment in branch.by_name:
        found, found_values = _walk(branch.by_name[segment], segments, at + 1, values)
        if found is not None:
            return found, found_values
    if branch.named is not None and segment:
        return _walk(branch.named, segments, at + 1, [*values, segment])
    return None, values
