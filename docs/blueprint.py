"""Writes docs/api/landbridge.apib, the API Blueprint, from the OpenAPI document and docs/api/examples.yaml:
an action for each example, in the order of that file. ``./dev docs`` runs it; a test runs every action
against a live terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from landbridge.gateways.http import openapi
from landbridge.gateways.http.catalogue import ROUTES

FOLDER = Path(__file__).with_name("api")
PATH, EXAMPLES = FOLDER / "landbridge.apib", FOLDER / "examples.yaml"
DRAFT = "http://json-schema.org/draft-07/schema#"
JSON = "application/json"
PROBLEM = "application/problem+json"
#: Headers by which a terminal shows who it is, by their names in the document.
SCHEMES = {
    "terminal": "Landbridge-Terminal",
    "timestamp": "Landbridge-Timestamp",
    "nonce": "Landbridge-Nonce",
    "proof": "Landbridge-Proof",
    "digest": "Content-Digest",
}
INTRO = """FORMAT: 1A

# Landbridge

{about}

This page is made from the OpenAPI document by `./dev docs`. The tests send every request of it to a live
terminal with dredd, and compare the answers. TOKEN stands for a token, ADMIN and OPERATOR for credentials of
the registry. RECEIPT_1 and other words in capitals stand for what an earlier answer has told.
"""


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """operationId → verb, path and what the document says of it."""
    return {
        one["operationId"]: (verb.upper(), path, one)
        for path, verbs in document["paths"].items()
        for verb, one in verbs.items()
    }


def examples() -> list[dict[str, Any]]:
    """The examples, each with its operation's id under ``of``."""
    found: list[dict[str, Any]] = yaml.safe_load(EXAMPLES.read_text())
    return found


def page() -> str:
    """The whole page."""
    return blueprint(openapi.document(ROUTES, with_registry=True), examples())


def blueprint(document: dict[str, Any], given: list[dict[str, Any]]) -> str:
    """The page for these examples. Every operation of the document has one."""
    known = operations(document)
    missing = sorted(known.keys() - {example["of"] for example in given})
    if missing:
        raise ValueError(f"docs/api/examples.yaml has no example of {', '.join(missing)}")
    by_tag: dict[str, list[str]] = {}
    titles: set[str] = set()
    for example in given:
        if example["of"] not in known:
            raise ValueError(f"docs/api/examples.yaml: there is no operation {example['of']}")
        _, _, one = known[example["of"]]
        if (name := title(example, one)) in titles:
            raise ValueError(f"docs/api/examples.yaml: give one of the examples '{name}' a title")
        titles.add(name)
        action = "\n".join(_action(example, *known[example["of"]], document))
        by_tag.setdefault(example.get("group", one["tags"][0]), []).append(action)
    parts = [INTRO.format(about=document["info"]["description"])]
    for tag, actions in by_tag.items():
        parts += [f"# Group {tag}\n", f"## {tag} [/{tag.replace(' ', '-')}]\n", *actions]
    return "\n".join(parts)


def title(example: dict[str, Any], one: dict[str, Any]) -> str:
    """The name of an action, which dredd's hooks know it by."""
    name = example.get("title", one["summary"].rstrip("."))
    # Brackets and parentheses mean something in a heading, and '>' parts the names that hooks see.
    return re.sub(r"[\[\]()<>{}]", "", f"{name}".split(";")[0]).strip()


def _action(
    example: dict[str, Any], verb: str, path: str, one: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    query = example.get("query", {})
    template = path + ("{?" + ",".join(query) + "}" if query else "")
    yield f"### {title(example, one)} [{verb} {template}]\n"
    yield f"Operation `{one['operationId']}`. {one.get('description', '') or one['summary']}\n"
    values = {**example.get("path", {}), **query}
    if values:
        yield "+ Parameters"
        meanings = {each["name"]: each.get("description", "") for each in one["parameters"]}
        for name, value in values.items():
            shown = json.dumps(value) if isinstance(value, bool) else value
            meaning = " ".join(meanings.get(name, "").split())
            yield f"    + {name}: `{shown}` (string, required){f' - {meaning}' if meaning else ''}"
        yield ""
    yield from _request(example, one, document)
    yield from _response(example, one, document)


def _request(example: dict[str, Any], one: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    body = example.get("body")
    media = example.get("type", JSON if body is not None else "")
    headers = dict(example.get("headers", {}))
    for name, value in _proof(one).items():
        headers.setdefault(name, value)
    if headers or media:
        yield f"+ Request{f' ({media})' if media else ''}\n"
    if headers:
        yield "    + Headers\n"
        yield from (f"            {name}: {value}" for name, value in headers.items())
        yield ""
    if body is not None:
        yield "    + Body\n"
        yield _indented(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False))
        schema = one.get("requestBody", {}).get("content", {}).get(media, {}).get("schema")
        if schema and media == JSON:
            yield from _schema(schema, document)


def _proof(one: dict[str, Any]) -> dict[str, str]:
    """The headers by which a caller shows who it is."""
    kinds = [kind for way in one.get("security", [{"token": []}]) for kind in way]
    if "token" in kinds:
        return {"Authorization": "Bearer TOKEN"}
    if "credential" in kinds:
        return {"Authorization": "Bearer ADMIN"}
    return {SCHEMES[kind]: kind.upper() for kind in kinds if kind in SCHEMES}


def _response(example: dict[str, Any], one: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    status = str(example.get("status") or next(iter(one["responses"])))
    said = _resolved(one["responses"][status], document)
    content = said.get("content", {})
    media = example.get("answers") or next(iter(content), "")
    yield f"+ Response {status}{f' ({media})' if media else ''}\n"
    schema = content.get(media, {}).get("schema")
    if schema and media in (JSON, PROBLEM) and "shape" not in example:
        yield from _schema(schema, document)


def _schema(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield "    + Schema\n"
    yield _indented(json.dumps(standing_alone(schema, document), ensure_ascii=False))


def _indented(text: str) -> str:
    return "\n".join(f"            {line}" for line in text.rstrip("\n").split("\n")) + "\n"


def _resolved(one: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = one.get("$ref")
    if reference is None:
        return one
    for name in reference.removeprefix("#/").split("/"):
        document = document[name]
    return document


def standing_alone(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A schema of the document with all that it refers to, as a schema of its own (JSON Schema draft 7)."""
    components = document["components"]["schemas"]
    used: dict[str, Any] = {}

    def walk(one: Any) -> Any:
        if isinstance(one, list):
            return [walk(each) for each in one]
        if not isinstance(one, dict):
            return one
        reference = one.get("$ref")
        if isinstance(reference, str):
            name = reference.rpartition("/")[2]
            if name not in used:
                used[name] = None  # a type may have itself as a part
                used[name] = walk(components[name])
            return {"$ref": f"#/definitions/{name}"}
        # OpenAPI 3.1 has JSON Schema 2020-12, whose prefixItems draft 7 calls items.
        found = {key: walk(each) for key, each in one.items()}
        if "prefixItems" in found:
            rest = found.pop("items", True)
            found |= {"items": found.pop("prefixItems"), "additionalItems": rest}
        return found

    whole = walk(schema)
    if "$ref" in whole:  # draft 7 passes over whatever stands beside a reference
        whole = {"allOf": [whole]}
    return {"$schema": DRAFT, **whole, **({"definitions": used} if used else {})}


if __name__ == "__main__":
    PATH.write_text(page())
