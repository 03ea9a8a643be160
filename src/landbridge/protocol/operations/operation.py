"""What an entry of the table is, and the table itself, which the files of the nouns fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from landbridge.core.options import LONGEST_QUOTE, explain
from landbridge.errors import BadRequest

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Verb: TypeAlias = Literal["GET", "POST", "PATCH", "DELETE"]
#: The scope of an operation that needs no token.
ANYBODY = "anybody"


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, R, A]):
    """One entry of the table. P are the arguments of the request's constructor, R is the request, A the
    answer."""

    #: "topic.create": a noun and a verb.
    name: str
    request: Callable[P, R]
    #: A struct, or what msgspec can convert to; NoneType where there is nothing to say.
    answer: type[A]
    #: What a token needs, alternatives separated by "|": a rank ("observe", "operate", "admin"), or a verb.
    #: In "publish:{topic}" the field ``topic`` of the request holds a topic's name, None, or several names;
    #: in "observe|publish|subscribe:{topic}" the rank, or one of the two verbs, is enough. "self:{name}": the
    #: field is the caller's own name. Empty: any token may ask, and the handler shows only what the token may
    #: see. ANYBODY: a stranger may ask, without a token.
    scope: str
    #: True: nothing is changed by it.
    safe: bool
    verb: Verb
    #: Names in braces are fields of the request. The other fields are the query of a GET or DELETE, and the
    #: body of the others.
    path: str
    help: str
    #: Whether the audit log has what it changes. Not so: messages, and what programs write for themselves.
    is_audited: bool
    #: Which node of a terminal answers it.
    #: "topic:{topic}": the owner of the topic that the field names; where the field is None or "*", every
    #: node, and the answers are merged; where it is empty, the owner of unit 0. "{rule|source}": the first of
    #: these fields that names something.
    #: "topics:{offsets}": the owners of all topics that the field names, each for its own.
    #: "stage:{stage}": the owner of the stage.
    #: "home": the owner of unit 0, where the trust and the settings of the terminal are.
    #: "every": every node, and the answers are merged.
    #: "any": one node after the other, until one can answer.
    #: "here": the node that was asked.
    where: str

    def read(self, arguments: dict[str, Any], *, strict: bool = True) -> R:
        """The request that arguments from outside make. BadRequest says which of them is wrong. ``strict``:
        numbers and the like are of their own types; False: they may be text, as forms have them."""
        try:
            request: R = msgspec.convert(arguments, self.request, strict=strict)
        except msgspec.ValidationError as error:
            raise self._mistake(error, arguments) from None
        return request

    def _mistake(self, error: msgspec.ValidationError, arguments: dict[str, Any]) -> BadRequest:
        kind: Any = self.request
        fields = msgspec.structs.fields(kind)
        names = [field.name for field in fields]
        takes = f"it takes {', '.join(names) or 'none'}"
        for name in arguments:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}? {takes}" if near else takes
                return BadRequest(f"{self.name}: there is no argument {name[:LONGEST_QUOTE]!r}", hint=hint)
        missing = [field.name for field in fields if field.required and field.name not in arguments]
        if missing:
            return BadRequest(f"{self.name}: {' and '.join(missing)} missing", hint=takes)
        message, hint = explain(error, kind)
        return BadRequest(f"{self.name}: {message}", hint=hint)


def about(text: str) -> Meta:
    """What a field means."""
    return Meta(description=text)


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of an operation. Those that name a thing may be given by position."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation returns."""


#: Every operation, by its name.
OPERATIONS: dict[str, Operation[..., Any, Any]] = {}


def operation(
    name: str,
    request: Callable[P, R],
    answer: type[A],
    route: str,
    help: str,
    *,
    scope: str = "",
    safe: bool = False,
    audited: bool = True,
    where: str,
) -> Operation[P, R, A]:
    """``route``: verb and path. ``audited``: what it changes goes to the audit log; never of a safe one."""
    verb, _, path = route.partition(" ")
    # A test checks that the verb is one of four. Through Any: the table has no P, R and A.
    safe = safe or verb == "GET"
    is_audited = audited and not safe
    entry: Any = Operation(name, request, answer, scope, safe, verb, path, help, is_audited, where)  # type: ignore[arg-type]
    OPERATIONS[name] = entry
    return entry  # type: ignore[no-any-return]
