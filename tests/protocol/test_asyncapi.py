"""The AsyncAPI description: its structure, and that every reference leads somewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from landbridge.core.topic import GroupSpec, group_spec, topic_spec
from landbridge.core.trust.service import service_spec
from landbridge.protocol.asyncapi import asyncapi

TOPICS = [
    topic_spec({"name": "orders.eu"}),
    topic_spec({"name": "orders.us", "retention": {"max_age": 60.0}}),
    topic_spec({"name": "jobs", "kind": "queue"}),
]
GROUPS: list[GroupSpec] = [
    group_spec({"topic": "orders.eu", "name": "billing", "order": "key"}),
    group_spec({"topic": "elsewhere", "name": "g"}),
]
SERVICE = service_spec(
    {
        "name": "pricing",
        "description": "Quotes prices.",
        "publishes": ["orders.*"],
        "subscribes": ["jobs"],
        "endpoints": [
            {"name": "quote", "topic": "prices.quote", "reply": True, "description": "A price."},
            {"name": "watch", "topic": "orders.#"},
        ],
    }
)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            assert list(value) == ["$ref"]
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def follow(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        document = document[unquote(part).replace("~1", "/").replace("~0", "~")]
    return document


def check(document: dict[str, Any]) -> None:
    """What the specification demands, as far as this description uses it."""
    assert list(document)[:2] == ["asyncapi", "info"]
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["title"]
    assert document["info"]["version"]
    assert set(document) <= {
        "asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components",
    }  # fmt: skip
    for server in document["servers"].values():
        assert server["host"]
        assert server["protocol"]
    for channel in document["channels"].values():
        assert set(channel) - {"x-landbridge"} <= {"address", "title", "description", "messages", "servers"}
    for name, operation in document["operations"].items():
        assert operation["action"] in ("send", "receive")
        assert operation["channel"]["$ref"].startswith("#/channels/")
        for message in operation["messages"]:  # of the operation's own channel
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/"), name
        assert set(operation) - {"x-landbridge"} <= {
            "action", "channel", "title", "description", "tags", "messages", "reply",
        }  # fmt: skip
    for reference in references(document):
        assert follow(document, reference) is not None
    msgspec.json.encode(document)


def test_it_is_as_the_specification_demands() -> None:
    document = asyncapi("tokyo", TOPICS, GROUPS, [SERVICE], host="tokyo:7420", secure=True, version="1.2.3")
    check(document)
    assert list(document["channels"]) == ["orders.eu", "orders.us", "jobs", "prices.quote"]
    assert list(document["operations"]) == [
        "receive/orders.eu/billing",
        "send/pricing/orders.eu",
        "send/pricing/orders.us",
        "handle/pricing/quote/prices.quote",
        "handle/pricing/watch/orders.eu",
        "handle/pricing/watch/orders.us",
        "receive/pricing//jobs",
    ]
    quote = document["operations"]["handle/pricing/quote/prices.quote"]
    assert quote["reply"]["address"]["location"] == "$message.header#/lb-reply-to"
    assert (quote["description"], quote["tags"]) == ("A price.", [{"name": "pricing"}])
    assert document["operations"]["receive/orders.eu/billing"]["x-landbridge"]["order"] == "key"
    assert document["channels"]["jobs"]["x-landbridge"]["kind"] == "queue"
    assert document["servers"]["terminal"]["protocol"] == "lbs"


def test_a_terminal_with_nothing() -> None:
    document = asyncapi("empty", [], [])
    check(document)
    assert document["channels"] == document["operations"] == {}


def test_a_reserved_topic_can_be_referred_to() -> None:
    document = asyncapi("x", [topic_spec({"name": "$status"})], [GroupSpec(topic="$status", name="g")])
    check(document)


@pytest.mark.slow
def test_it_is_valid_by_the_official_schema(tmp_path: Path) -> None:
    """The schema comes from npm, as it is the work of others."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm")
    jsonschema = pytest.importorskip("jsonschema")
    packed = subprocess.run(
        [npm, "pack", "--silent", "@asyncapi/specs"], cwd=tmp_path, capture_output=True, text=True
    )
    if packed.returncode:
        pytest.skip("@asyncapi/specs can't be fetched")
    with tarfile.open(tmp_path / packed.stdout.strip().splitlines()[-1]) as archive:
        found = archive.extractfile("package/schemas/3.0.0.json")
        assert found is not None
        schema = json.load(found)
    for document in (
        asyncapi("tokyo", TOPICS, GROUPS, [SERVICE], host="tokyo:7420", secure=True, version="1.2.3"),
        asyncapi("empty", [], []),
    ):
        jsonschema.Draft7Validator(schema).validate(document)
