"""docs/api/landbridge.apib is up to date, has every operation, and a live terminal answers as it says."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import landbridge
from landbridge.errors import NoResponder
from landbridge.gateways.http import openapi
from landbridge.gateways.http.catalogue import ROUTES
from tests.cli.conftest import LIMIT, Place, Up
from tests.docs import dredd
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
HOOKS = Path(__file__).with_name("hooks.js")
BLUEPRINT = runpy.run_path(str(ROOT / "docs" / "blueprint.py"))
DOCUMENT = openapi.document(ROUTES, with_registry=True)


def test_it_is_up_to_date() -> None:
    assert BLUEPRINT["PATH"].read_text() == BLUEPRINT["page"](), "out of date: ./dev docs"


def test_an_operation_without_an_example_is_noticed() -> None:
    given = [example for example in BLUEPRINT["examples"]() if example["of"] != "topic.show"]
    with pytest.raises(ValueError, match=r"no example of topic\.show"):
        BLUEPRINT["blueprint"](DOCUMENT, given)
    twice = [*BLUEPRINT["examples"](), BLUEPRINT["examples"]()[0]]
    with pytest.raises(ValueError, match="give one of the examples"):
        BLUEPRINT["blueprint"](DOCUMENT, twice)
    with pytest.raises(ValueError, match="there is no operation"):
        BLUEPRINT["blueprint"](DOCUMENT, [*BLUEPRINT["examples"](), {"of": "topic.make"}])


def test_only_streams_are_left_out() -> None:
    left_out = {example["of"] for example in BLUEPRINT["examples"]() if example.get("live") is False}
    assert left_out == {"streamMessages", "streamContent"}


def base64_of(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def write_settings(path: Path, place: Place, up: Up) -> int:
    """Write what the hooks need to know. Returns how many requests they leave out."""
    context = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
    key = Ed25519PrivateKey.generate()
    words = {
        "TOKEN": context["token"],
        "ADMIN": context["registry_token"],
        "OPERATOR": context["operator_token"],
        "LOCAL_TERMINAL": up.ready["terminal"],
        # The terminal that is enrolled by an example signs its requests with this key.
        "SIGN_KEY": base64_of(key),
        "NEW_SIGN_KEY": base64_of(Ed25519PrivateKey.generate()),
        "WRAP_KEY": base64.b64encode(bytes(range(32))).decode(),
    }
    known = BLUEPRINT["operations"](DOCUMENT)
    keep: dict[str, Any] = {}
    left_out = []
    for example in BLUEPRINT["examples"]():
        title = BLUEPRINT["title"](example, known[example["of"]][2])
        if "keep" in example:
            keep[title] = example["keep"]
        if example.get("live") is False:
            left_out.append(title)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_text(json.dumps({"words": words, "keep": keep, "left_out": left_out, "key": pem.decode()}))
    return len(left_out)


quotes = landbridge.Service("quotes")


@quotes.on("prices.quote", reply=True)
async def quote(order: dict[str, Any]) -> dict[str, Any]:
    return {"price": 2 * order["count"]}


async def until_answered(bus: landbridge.Bus) -> None:
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await bus.request("prices.quote", {"count": 1})
                return
            except NoResponder:
                await asyncio.sleep(0.01)


@pytest.mark.timeout(600)
async def test_a_live_terminal_answers_as_it_says(tmp_path: Path) -> None:
    program = dredd.command()
    place = Place(tmp_path)
    settings = tmp_path / "hooks.json"
    with place.up("--http-port", str(free_port())) as up:
        left_out = write_settings(settings, place, up)
        context = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
        async with landbridge.connect(context["url"], token=context["token"]) as bus, quotes.running(bus):
            await until_answered(bus)
            with (tmp_path / "out").open("wb") as file:
                process = await asyncio.create_subprocess_exec(
                    *program,
                    *(BLUEPRINT["PATH"], up.ready["http"]),
                    *("--hookfiles", HOOKS, "--color=false"),
                    cwd=tmp_path,
                    env={**dredd.environment(), "HOOKS": str(settings)},
                    stdout=file,
                    stderr=asyncio.subprocess.STDOUT,
                )
                try:
                    status = await asyncio.wait_for(process.wait(), LIMIT)
                except TimeoutError:
                    process.kill()
                    status = await process.wait()
            out = (tmp_path / "out").read_text()
    found = re.search(r"(\d+) passing, (\d+) failing, (\d+) errors, (\d+) skipped, (\d+) total", out)
    assert found, out
    count = len(BLUEPRINT["examples"]())
    failed = "\n".join(line for line in out.splitlines() if line.startswith(("fail", "error")))
    assert [int(number) for number in found.groups()] == [count - left_out, 0, 0, left_out, count], failed
    assert status == 0
