"""The table of operations holds together: whatever is generated from it can rely on this."""

from __future__ import annotations

import re
import typing
from typing import Any

import msgspec
import pytest

from landbridge.core.trust.scopes import RANKS, VERBS
from landbridge.errors import BadRequest
from landbridge.protocol import operations
from landbridge.protocol.operations import ANYBODY, OPERATIONS, Arguments, Operation, Result


def names_in(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def structs() -> list[Any]:
    kinds = [kind for kind in vars(operations).values() if isinstance(kind, type)]
    return [
        kind for kind in kinds if issubclass(kind, Arguments | Result) and kind not in (Arguments, Result)
    ]


def test_a_verb_and_a_path_lead_to_one_operation() -> None:
    # Two paths that differ only in what their parameters are called would be the same to a router.
    routes = [(o.verb, re.sub(r"{\w+}", "{}", o.path)) for o in OPERATIONS.values()]
    assert len(set(routes)) == len(routes)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_entry_is_whole(operation: Operation[..., Any, Any]) -> None:
    request: Any = operation.request
    fields = {field.name: field for field in msgspec.structs.fields(request)}
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", operation.name)
    assert operation.verb in ("GET", "POST", "PATCH", "DELETE")
    assert re.fullmatch(r"/v1(/[a-z]+|/{[a-z]+})+", operation.path)
    for name in names_in(operation.path):
        assert fields[name].required
    assert operation.help[0].isupper()
    assert operation.help.endswith(".")
    assert operation.safe or operation.verb != "GET"
    assert request.__struct_config__.forbid_unknown_fields
    scope, _, target = operation.scope.partition(":")
    assert scope in ("", ANYBODY) or set(scope.split("|")) <= {*RANKS, *VERBS, "self"}
    assert bool(target) == bool(set(scope.split("|")) & {*VERBS, "self"})
    assert target in ("", "$status", "$audit") or names_in(target)[0] in fields
    kind, _, named = operation.where.partition(":")
    assert kind in ("topic", "topics", "stage", "home", "every", "any", "here")
    assert bool(named) == (kind in ("topic", "topics", "stage"))
    assert not named or set(named[1:-1].split("|")) <= set(fields)


@pytest.mark.parametrize("kind", structs(), ids=lambda kind: kind.__name__)
def test_every_field_says_what_it_means(kind: Any) -> None:
    assert kind.__doc__
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        described = [extra.description for extra in getattr(hint, "__metadata__", ())]
        assert any(described), name


@pytest.mark.parametrize("kind", structs(), ids=lambda kind: kind.__name__)
def test_requests_and_answers_have_a_schema(kind: Any) -> None:
    """What OpenAPI will be made of."""
    assert msgspec.json.schema(kind)["$defs"]


@pytest.mark.parametrize(
    ("operation", "arguments", "message", "hint"),
    [
        ("topic.create", {"name": "t", "knid": "queue"}, "there is no argument 'knid'", "did you mean kind?"),
        (
            "topic.create",
            {"name": "t", "kind": "heap"},
            "kind: invalid enum value 'heap'",
            "one of: stream, queue",
        ),
        (
            "topic.create",
            {"name": "t", "retention": {"max_ag": 1}},
            "no option 'retention.max_ag'",
            "did you",
        ),
        ("group.seek", {"topic": "t"}, "group.seek: name missing", "it takes topic, name, to, time"),
        ("status.levels", {"topics": {"t": "loud"}}, "topics[...]: invalid", "one of: off, errors"),
        ("group.create", {"topic": "t", "name": "g", "start": "now"}, "start: invalid", "one of: earliest"),
    ],
)
def test_a_mistake_is_named(operation: str, arguments: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        OPERATIONS[operation].read(arguments)
    assert str(refused.value).startswith(f"{operation}: ")
    assert message in str(refused.value)
    assert refused.value.hint.startswith(hint)


def test_what_is_not_given_is_not_sent() -> None:
    request = operations.TopicOptions("orders", retention=operations.RetentionOptions(max_age=None))
    assert msgspec.to_builtins(request) == {"name": "orders", "retention": {"max_age": None}}
