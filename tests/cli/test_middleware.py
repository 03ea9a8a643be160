"""Middleware and event types from the command line, with a package of the users' own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Place

SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


def test_types_and_stages_from_the_command_line(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (schema := tmp_path / "order.json").write_text(json.dumps(SCHEMA))
    (strict := tmp_path / "strict.json").write_text(json.dumps({**SCHEMA, "required": ["id", "name"]}))
    stages = [{"stage": "redact", "fields": ["/card"], "at": "deliver"}, {"stage": "authorise"}]
    (file := tmp_path / "stages.json").write_text(json.dumps(stages))
    with place.up("--http-port", "0") as up:
        assert up.ready
        more = ("--middleware", "validate", "--middleware", '{"stage": "compress", "level": 3}')
        assert place.call("topic", "create", "orders", "--middleware", f"@{file}", *more).status == 0
        shown = place.call("topic", "show", "orders")
        redacted = 'redact {"fields":["/card"],"at":"deliver"}'
        assert f'{redacted}, authorise, validate, compress {{"level":3}}' in shown.out
        options = place.call("topic", "show", "orders", "--json").json["options"]["middleware"]
        assert [stage["stage"] for stage in options] == ["redact", "authorise", "validate", "compress"]
        assert options[3]["level"] == 3
        assert place.call("type", "list", "orders", "--json").json == []
        assert "version 1" in place.call("type", "register", "orders", "default", str(schema)).out
        refused = place.call("publish", "orders", '{"id": "x"}', "--json")
        assert refused.status == 96
        assert "/id" in refused.err
        assert place.call("publish", "orders", '{"id": 1, "card": "4111"}').status == 0
        read = place.call("subscribe", "orders", "--group", "g", "--count", "1", "--json").lines[0]
        assert read["headers"]["lb-producer"]
        assert "4111" not in json.dumps(read)
        incompatible = place.call("type", "register", "orders", "default", str(strict))
        assert incompatible.status == 99
        assert "/name: it is required now" in incompatible.err
        any_schema = ("--compatibility", "none", "--description", "an order", "--json")
        made = place.call("type", "register", "orders", "default", str(strict), *any_schema).json
        assert made["versions"] == [1, 2]
        assert "an order" in place.call("type", "list", "orders").out
        assert "name" in place.call("type", "show", "orders", "default").out
        assert json.loads(place.call("type", "show", "orders", "default", "--version", "1").out) == SCHEMA
        assert place.call("type", "show", "orders", "default", "--version", "7").status == 10
        assert place.call("type", "remove", "orders", "default", "--version", "2").status == 0
        assert place.call("type", "remove", "orders", "default").status == 0
        assert place.call("type", "show", "orders", "default").status == 98
        assert place.call("topic", "update", "orders", "--middleware", "none").status == 0
        assert place.call("topic", "show", "orders", "--json").json["options"]["middleware"] == []
        for wrong in ("polish", '{"stage": ', "@nowhere.json", '["validate"]'):
            failed = place.call("topic", "update", "orders", "--middleware", wrong)
            assert failed.status == 10, failed.err
        assert place.call("type", "register", "orders", "default", "nowhere.json").status == 10
