"""Rules from the command line, and messages without a topic."""

from __future__ import annotations

import json
from pathlib import Path

import landbridge
from tests.cli.conftest import Place, until

PAID = '{"state": ["paid"]}'


def test_all_that_can_be_done_with_a_rule(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.up("--http-port", "0") as up:
        assert up.ready
        assert place.call("rule", "list", "--json").json == []
        made = place.call("rule", "create", PAID, "--json").json
        rule = made["rule"]
        assert "was there" in place.call("rule", "create", PAID).out
        file = tmp_path / "query.json"
        file.write_text('{"kind": "regexp", "pattern": "urg[e]nt"}')
        other = place.call("rule", "create", f"@{file}", "--source", "orders", "--json").json["rule"]
        assert (
            "made the topic orderz; did you mean orders?"
            in place.call("rule", "create", PAID, "--source", "orderz").err
        )
        empty = place.call("rule", "trace", rule, "0", "--json").error
        assert (empty["code"], empty["hint"]) == ("unknown_message", "it has no messages")
        assert place.call("publish", "--content", '{"state": "open"}').status == 0
        assert place.call("publish", "--content", '{"state": "paid", "n": 1}').status == 0
        until(lambda: place.call("rule", "show", rule, "--json").json["messages"] == 1)
        read = place.call("subscribe", "--match", PAID, "--group", "g", "--count", "1", "--json").lines
        assert json.loads(read[0]["payload"])["n"] == 1
        assert place.call("rule", "trace", rule, "0", "--json").json == {"source": "$content", "offset": 1}
        assert "at offset 1" in place.call("rule", "trace", rule, "0").out
        beyond = place.call("rule", "trace", rule, "9", "--json").error
        assert beyond["hint"] == "it has the offsets 0 to 0"
        assert rule in place.call("rule", "list").out
        mistyped = place.call("subscribe", "orderx", "--match", PAID, "--count", "1", "--wait", "0")
        assert "made the topic orderx; did you mean order" in mistyped.err
        assert "$rules" in place.call("group", "list").out
        shown = place.call("topic", "show", rule)
        assert (shown.status, '{"state":["paid"]}' in shown.out) == (0, True)
        assert place.call("topic", "show", rule, "--json").json["options"]["rule"]["source"] == "$content"
        assert place.call("topic", "update", rule, "--max-age", "1d").status == 0
        assert '{"state":["paid"]}' in place.call("rule", "show", rule).out
        assert [row["rule"] for row in place.call("rule", "list", "--source", "orders", "--json").json] == [
            other
        ]
        assert 'found "open", wanted "paid"' in place.call("rule", "test", '{"state": "open"}').out
        tested = place.call("rule", "test", "urgent!", "--source", "orders", "--key", "k", "--json").json
        assert [(row["rule"], row["matches"]) for row in tested] == [(other, True)]
        assert place.call("rule", "test", '{"state": "open"}', "--matching", "--json").json == []
        asked = place.call("rule", "test", '{"n": 5}', "--match", '{"n": [5]}', "--json").json
        assert asked[0]["matches"]
        file.write_text('{"n": 5}')
        asked = place.call("rule", "test", "--file", str(file), "--match", '{"n": [6]}', "--json").json
        assert (asked[0]["matches"], asked[0]["why"]) == (False, "found 5, wanted 6")
        refused = place.call("topic", "pause", rule, "--json").error
        assert "--delivery" in refused["hint"]
        assert place.call("rule", "delete", rule).status == 0
        assert place.call("rule", "delete", other, "--force", "--json").json == {"deleted": other}
        unknown = place.call("rule", "show", rule, "--json")
        assert unknown.status == landbridge.errors.UnknownTopic.exit_status
        assert "rule list" in unknown.error["hint"]


def test_a_line_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    wrong = landbridge.errors.BadRequest.exit_status
    for line, status in (
        (("publish",), 2),
        (("publish", '{"state": "paid"}'), 2),
        (("publish", "orders", "1", "--content"), 2),
        (("subscribe",), 2),
        (("subscribe", "--match", "{"), wrong),
        (("subscribe", "--match", "[]"), wrong),
        (("rule", "create", f"@{tmp_path}/none.json"), wrong),
        (("rule", "test"), 2),
        (("rule", "test", "1", "--file", "x"), 2),
        (("rule", "test", "--file", f"{tmp_path}/none.json"), wrong),
    ):
        assert place.call(*line).status == status, line
