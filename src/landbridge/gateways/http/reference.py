"""The reference page ``/docs``: the OpenAPI document as HTML, made here. It loads nothing from elsewhere and
has no script, so it works without the internet and under a strict policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #0a7a5a; }
@media (prefers-color-scheme: dark) { :root { --accent: #4cc9a0; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
nav a { margin-right: 1rem; } a { color: var(--accent); }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; }
summary { cursor: pointer; padding: .5rem .75rem; }
details > div { padding: 0 .75rem .75rem; }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 700; color: var(--accent); }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: var(--soft); padding: .75rem; border-radius: 6px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; }
td, th { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
.soft { opacity: .7; }
"""


def page(whole: dict[str, Any]) -> bytes:
    """The page of a document."""
    info = whole["info"]
    by_tag: dict[str, list[str]] = {tag["name"]: [] for tag in whole["tags"]}
    for path, verbs in whole["paths"].items():
        for verb, one in verbs.items():
            by_tag[one["tags"][0]].append(_operation(path, verb, one))
    links = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in by_tag)
    parts = "".join(
        f'<h2 id="{escape(tag)}">{escape(tag)}</h2>{"".join(found)}' for tag, found in by_tag.items()
    )
    schemas = "".join(
        f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<div>{_schema_table(schema)}</div></details>"
        for name, schema in sorted(whole["components"]["schemas"].items())
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} {escape(info['version'])}</title>"
        '<link rel="stylesheet" href="/docs/style.css"></head><body>'
        f"<h1>{escape(info['title'])}</h1><p class='soft'>version {escape(info['version'])}, "
        f'<a href="/openapi.json">openapi.json</a></p><p>{_text(info["description"])}</p>'
        f'<nav>{links}<a href="#schemas">schemas</a></nav>{parts}<h2 id="schemas">schemas</h2>{schemas}'
        "</body></html>"
    ).encode()


def _operation(path: str, verb: str, one: dict[str, Any]) -> str:
    parts = [f"<p>{_text(one['description'])}</p>" if "description" in one else ""]
    if one.get("security") == []:
        parts.append("<p class='soft'>Needs no token.</p>")
    rows = [
        (
            f"<code>{escape(found['name'])}</code>",
            found["in"],
            _type(found["schema"]),
            _text(found.get("description", "")),
        )
        for found in one["parameters"]
    ]
    parts.append(_table(("parameter", "in", "type", ""), rows))
    for media, body in one.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body <code>{escape(media)}</code>: {_type(body['schema'])}</p>")
        if "example" in body:
            example = body["example"]
            shown = example if isinstance(example, str) else json.dumps(example, indent=2)
            parts.append(f"<pre>{escape(shown)}</pre>")
    answers = [
        (escape(status), _answer(found)) for status, found in one["responses"].items() if "$ref" not in found
    ]
    refused = ", ".join(status for status, found in one["responses"].items() if "$ref" in found)
    parts.append(_table(("status", ""), [*answers, (escape(refused), "a problem document")]))
    name = escape(one["operationId"])
    return (
        f'<details id="{name}"><summary><span class="verb">{escape(verb.upper())}</span> '
        f"<code>{escape(path)}</code> {escape(one['summary'])}</summary><div>{''.join(parts)}</div></details>"
    )


def _answer(found: dict[str, Any]) -> str:
    forms = [
        f"<code>{escape(media)}</code> {_type(form['schema'])}"
        for media, form in found.get("content", {}).items()
    ]
    return "<br>".join([_text(found["description"]), *forms])


def _schema_table(schema: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(name)}</code>{'' if name in needed else ' <span class=soft>optional</span>'}",
            _type(one),
            _text(one.get("description", "")),
        )
        for name, one in schema.get("properties", {}).items()
    ]
    said = f"<p>{_text(schema['description'])}</p>" if "description" in schema else ""
    return said + (_table(("member", "type", ""), rows) if rows else _type(schema))


def _type(schema: dict[str, Any] | bool) -> str:
    """What a schema allows, in a word or a few."""
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(one) for one in schema[several])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        kinds = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {', '.join(map(_type, kinds))}"
    bounds = [
        f"{word} {schema[key]:g}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    return escape(" ".join([str(kind), *bounds]))


def _text(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{cells}</table>"
