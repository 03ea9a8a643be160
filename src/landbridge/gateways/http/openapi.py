"""One OpenAPI 3.1 document for the terminal and, where one is at the same port, the registry.

It is generated: from the table of operations, from what the routes of messages say of themselves, and from
the registry's table. Schemas come from the types that requests are decoded by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

import landbridge
from landbridge.client import registry_operations
from landbridge.client.registry_operations import RegistryOperation
from landbridge.gateways.http.routes import Described, HttpRoute
from landbridge.protocol.http import MEDIA_TYPE, Problem

_REFS = "#/components/schemas/{name}"
_ABOUT = (
    "Messages of a Landbridge terminal, and its administration. Every request needs a bearer token, unless "
    "it says otherwise. Refusals are problem documents (RFC 9457), whose `code` is stable. Headers and "
    "parameters that a path doesn't know are refused."
)
_TRACE = {
    "name": "traceparent",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The trace that the request belongs to (W3C). Messages keep it.",
}
#: Refusals of the registry, by who may ask.
_REGISTRY_REFUSALS = (400, 401, 403, 404, 409, 410, 413, 429, 503)
_PROOF = ["terminal", "timestamp", "nonce", "proof"]


class Schemas:
    """The schemas of all types of the document."""

    def __init__(self) -> None:
        self._types: list[Any] = []
        self._places: list[tuple[dict[str, Any], int]] = []

    def of(self, kind: Any) -> dict[str, Any]:
        """A schema for a type, for several types of which one holds (a tuple), or a schema as it is. What is
        returned is filled in by ``components``."""
        if isinstance(kind, dict) and "of" not in kind:
            return kind
        if isinstance(kind, tuple):
            return {"anyOf": [self.of(one) for one in kind]}
        place: dict[str, Any] = {}
        self._types.append(kind["of"] if isinstance(kind, dict) else kind)
        self._places.append((place, len(self._types) - 1))
        return place

    def components(self) -> dict[str, Any]:
        """All schemas by name. Fills in those that ``of`` has returned."""
        schemas, components = msgspec.json.schema_components(self._types, ref_template=_REFS)
        for place, index in self._places:
            place.update(schemas[index])
        return components


def document(routes: Iterable[HttpRoute], *, with_registry: bool) -> dict[str, Any]:
    """The whole document."""
    schemas = Schemas()
    problem = schemas.of(Problem)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.verb == "HEAD":
            continue  # the answer of GET without its body (RFC 9110 9.3.2)
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas)
    if with_registry:
        for operation in registry_operations.ALL:
            path = f"/registry{operation.path}"
            paths.setdefault(path, {})[operation.verb.lower()] = _of_registry(operation, schemas)
    components = schemas.components()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Landbridge",
            "version": landbridge.__version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": name} for name in _tags(paths)],
        "paths": dict(sorted(paths.items(), key=lambda path: path[0].startswith("/registry"))),
        "components": {
            "schemas": components,
            "securitySchemes": _schemes(with_registry=with_registry),
            "responses": {
                "Refused": {"description": "Refused.", "content": {MEDIA_TYPE: {"schema": problem}}},
                "TryAgain": {
                    "description": "Refused for now.",
                    "headers": {
                        "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
                    },
                    "content": {MEDIA_TYPE: {"schema": problem}},
                },
            },
        },
    }


def encode(whole: dict[str, Any]) -> bytes:
    """The document as JSON."""
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def _tags(paths: dict[str, dict[str, Any]]) -> list[str]:
    return list(
        dict.fromkeys(tag for verbs in paths.values() for one in verbs.values() for tag in one["tags"])
    )


# -- the terminal --------------------------------------------------------------------------------------


def _operation(route: HttpRoute, schemas: Schemas) -> dict[str, Any]:
    said = route.described
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]
    parameters += [_parameter(name, "query", one, schemas) for name, one in said.query.items()]
    parameters += [_parameter(name, "header", one, schemas) for name, one in said.headers.items()]
    found: dict[str, Any] = {
        "operationId": said.name,
        "tags": [said.tag],
        "summary": said.summary,
        **({"description": said.description} if said.description else {}),
        "parameters": [*parameters, _TRACE],
    }
    if said.bodies:
        found["requestBody"] = {
            "required": said.needs_body,
            "content": {media: _content(one, schemas) for media, one in said.bodies.items()},
        }
    if not said.needs_token:
        found["security"] = []
    found["responses"] = _answers(said, schemas) | refusals(said.refusals)
    return found


def _parameter(name: str, place: str, one: tuple[dict[str, Any], str], schemas: Schemas) -> dict[str, Any]:
    schema, description = one
    found: dict[str, Any] = {"name": name, "in": place, "schema": schemas.of(schema)}
    if schema.get("required"):
        found["required"] = True
    if description:
        found["description"] = description
    return found


def _content(one: tuple[Any, Any], schemas: Schemas) -> dict[str, Any]:
    kind, example = one
    return {"schema": schemas.of(kind), **({} if example is None else {"example": example})}


def _answers(said: Described, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, (description, forms) in said.answers.items():
        answer: dict[str, Any] = {"description": description}
        if forms:
            answer["content"] = {media: {"schema": schemas.of(kind)} for media, kind in forms.items()}
        if status == HTTPStatus.ACCEPTED:
            where = {"schema": {"type": "string"}, "description": "Where the state is shown."}
            answer["headers"] = {"Location": where}
        found[str(status)] = answer
    return found


def refusals(statuses: Iterable[int]) -> dict[str, Any]:
    """The refusals of an operation, by status."""
    again = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    return {
        str(status): {"$ref": f"#/components/responses/{'TryAgain' if status in again else 'Refused'}"}
        for status in statuses
    }


# -- the registry --------------------------------------------------------------------------------------


def _of_registry(operation: RegistryOperation[..., Any, Any], schemas: Schemas) -> dict[str, Any]:
    fields = {field.name: field for field in operation.fields}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in operation.in_path
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "required": fields[name].required,
            "schema": schemas.of({"of": fields[name].type}),
        }
        for name in operation.in_query
    ]
    found: dict[str, Any] = {
        "operationId": operation.name,
        "tags": ["registry"],
        "summary": operation.help,
        "parameters": parameters,
        "security": {
            "anybody": [],
            "terminal": [{name: [] for name in _PROOF} | ({"digest": []} if operation.in_body else {})],
        }.get(operation.who, [{"credential": []}]),
    }
    if operation.in_body:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas.of(_body_of(operation))}},
        }
    if operation.answer is type(None):
        answers: dict[str, Any] = {"204": {"description": "Done."}}
    else:
        is_made = operation.verb == "POST" and operation is not registry_operations.READ_DIRECTORY
        content = {"application/json": {"schema": schemas.of(operation.answer)}}
        answers = {"201" if is_made else "200": {"description": "Done.", "content": content}}
        if operation is registry_operations.READ_DIRECTORY:
            answers["204"] = {"description": "There is no newer directory."}
    found["responses"] = answers | refusals(_REGISTRY_REFUSALS)
    return found


def _body_of(operation: RegistryOperation[..., Any, Any]) -> Any:
    if len(operation.in_body) == len(operation.fields):
        return operation.request
    members: list[Any] = [
        (field.name, field.type, *(() if field.required else (field.default,)))
        for field in operation.fields
        if field.name in operation.in_body
    ]
    return msgspec.defstruct(f"{operation.name[0].upper()}{operation.name[1:]}Body", members, kw_only=True)


def _schemes(*, with_registry: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    if not with_registry:
        return found

    def header(name: str, text: str) -> dict[str, Any]:
        return {"type": "apiKey", "in": "header", "name": name, "description": text}

    proof = "Ed25519 over the label, the terminal, METHOD PATH?QUERY, time, nonce and SHA-256 of the body."
    return found | {
        "credential": {"type": "http", "scheme": "bearer", "bearerFormat": "lbac1"},
        "terminal": header("Landbridge-Terminal", "The terminal's id."),
        "timestamp": header("Landbridge-Timestamp", "Microseconds since 1970, right to 30 s."),
        "nonce": header("Landbridge-Nonce", "16 random bytes, base64, used once."),
        "proof": header("Landbridge-Proof", proof),
        "digest": header("Content-Digest", "sha-256=:base64: of the body (RFC 9530)."),
    }
