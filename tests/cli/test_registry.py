"""``landbridge registry``, and the one that ``landbridge up`` has with it: real processes."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from landbridge.client.registry import RegistryClient
from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import LinkState
from landbridge.core.trust.identity import Identity, SecureKey
from tests.cli.conftest import LIMIT, Place, Up
from tests.ports import free_port


@contextmanager
def registry(place: Place, *arguments: str) -> Iterator[Up]:
    process = place.start("registry", "--json", *arguments)
    try:
        yield Up(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT)


def saved(place: Place, context: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / "home" / "contexts" / f"{context}.json").read_text())
    return found


# -- alone ---------------------------------------------------------------------------------------------


def test_first_start_keeps_its_operator_and_the_next_one_its_customers(place: Place) -> None:
    port = str(free_port())
    with registry(place, "--port", port) as running:
        assert running.ready["url"] == f"http://127.0.0.1:{port}"
        assert running.ready["context"] == "registry"
        key = running.ready["registry_key"]
        made = place.call("customer", "create", "acme", "--json").json
        assert made["context"] == "acme"
        assert made["current"]
        assert "token" not in made
        stopped = running.stop()
        assert stopped.status == 0
        assert "Traceback" not in stopped.err
        for token in (saved(place, "registry")["operator_token"], saved(place, "acme")["registry_token"]):
            assert token not in stopped.err
    folder = place.data / "registry"
    assert (folder / "master.key").stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode((folder / "master.key").read_text())) == 32
    before = saved(place, "registry")
    with registry(place, "--port", port) as running:
        assert running.ready["registry_key"] == key
        assert saved(place, "registry") == before
        [customer] = place.call("customer", "list", "--json").json
        assert (customer["name"], customer["customer_id"]) == ("acme", made["customer_id"])


def test_it_says_what_to_do_next(place: Place) -> None:
    process = place.start("registry", "--port", "0")
    assert process.stdout is not None
    lines = [process.stdout.readline().decode() for _ in range(4)]
    process.terminate()
    process.communicate(timeout=LIMIT)
    assert lines[0].startswith("registry http://127.0.0.1:")
    assert lines[3] == "next     landbridge customer create NAME\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "in the clear"),
        (["--tls-cert", "/nowhere"], "belong together"),
        (["--master-key-file", "/proc/nowhere/key"], "can't write"),
    ],
)
def test_what_it_refuses(place: Place, arguments: list[str], message: str) -> None:
    refused = place.run("registry", "--json", "--port", "0", *arguments)
    assert message in refused.error["message"]
    assert not (place.folder / "home").exists()


def test_without_its_master_key_it_does_not_open(place: Place) -> None:
    with registry(place, "--port", "0") as running:
        running.stop()
    file = place.data / "registry" / "master.key"
    key = file.read_text()
    file.chmod(0o644)
    assert "chmod 600" in place.run("registry", "--json", "--port", "0").error["hint"]
    file.unlink()
    assert "master key" in place.run("registry", "--json", "--port", "0").error["message"]
    assert not file.exists()  # nor is another one made in its place
    place.settings["LANDBRIDGE_MASTER_KEY"] = base64.b64encode(b"x" * 32).decode()
    assert place.run("registry", "--json", "--port", "0").error["code"] == "store_corrupt"
    place.settings["LANDBRIDGE_MASTER_KEY"] = key
    with registry(place, "--port", "0") as running:
        assert running.stop().status == 0


def test_an_operator_that_is_not_here_is_made_only_when_asked_for(place: Place) -> None:
    with registry(place, "--port", "0") as running:
        old = saved(place, "registry")["operator_token"]
        running.stop()
    place.call("context", "remove", "registry")
    with registry(place, "--port", "0") as running:
        assert running.ready["context"] is None
        refused = place.call("customer", "list", "--json")
        assert refused.error["code"] == "bad_context"
        running.stop()
    with registry(place, "--port", "0", "--reset-operator") as running:
        assert place.call("customer", "list", "--json").json == []
        with httpx.Client(base_url=running.ready["url"]) as http:
            answer = http.get("/v1/customers", headers={"authorization": f"Bearer {old}"})
            assert answer.status_code == 401


def test_whoever_has_the_data_folder_of_up_can_make_the_operator_anew(place: Place) -> None:
    http = ("--http-port", str(free_port()))
    with place.up(*http) as running:
        assert [row["name"] for row in place.call("customer", "list", "--json").json] == ["local"]
        running.stop()
    place.call("context", "remove", "local")
    with place.up(*http) as running:
        assert place.call("customer", "list", "--json").error["code"] == "bad_context"
        assert place.call("terminal", "list").status == 0, "the customer's credential is made anew by itself"
        running.stop()
    with place.up(*http, "--reset-operator"):
        assert [row["name"] for row in place.call("customer", "list", "--json").json] == ["local"]
    assert place.run("up", "--no-registry", "--reset-operator").status == 2


def test_a_context_of_another_is_not_taken(place: Place) -> None:
    place.call("context", "add", "registry", "--url", "lb://127.0.0.1:1", "--token", "t")
    assert place.run("registry", "--json", "--port", "0").error["code"] == "context_taken"
    assert not (place.data / "registry").exists()


# -- the customer's side -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A registry with the customer acme, for all tests of the module."""
    place = Place(tmp_path_factory.mktemp("site"))
    with registry(place, "--port", "0"):
        place.call("customer", "create", "acme")
        yield place


def test_terminals(site: Place) -> None:
    made = site.call("terminal", "create", "t1", "--address", "lbs://t1.example:7420", "--json").json
    assert made["secure_key"].startswith("lbsk1_")
    assert site.call("terminal", "create", "t1", "--json").error["code"] == "name_taken"
    assert site.call("terminal", "update", "t1", "--region", "eu", "--draining").status == 0
    shown = site.call("terminal", "show", made["terminal_id"], "--json").json
    assert (shown["region"], shown["draining"], shown["address"]) == ("eu", True, "lbs://t1.example:7420")
    assert site.call("terminal", "update", "t1").status == 2
    rotated = site.call("terminal", "rotate", "t1", "--json").json
    assert rotated["secure_key"] not in (made["secure_key"], None)
    assert len(site.call("terminal", "show", "t1", "--json").json["keys"]) == 2
    site.call("key", "rotate", "--terminal", "t1", "--end-old")
    assert len(site.call("terminal", "show", "t1", "--json").json["keys"]) == 1
    assert site.call("terminal", "revoke", "t1", "--json").json["revoked_at"]
    assert "revoked" in site.call("terminal", "list").out
    assert site.call("terminal", "remove", "t1", "--json").json["removed"] == made["terminal_id"]
    assert site.call("terminal", "show", "t1", "--json").error["code"] == "unknown_terminal"


def test_groups_and_topics_of_the_registry(site: Place) -> None:
    for name in ("g1", "g2"):
        site.call("terminal", "create", name)
    # Whose it is, and where, is said of every change.
    url = saved(site, "acme")["registry"]
    assert site.call("group", "create", "desk", "--registry", "--terminal", "g1").out == (
        f"the terminal group desk has its consumers at g1 (customer acme at {url})\n"
    )
    added = site.call("group", "add-terminal", "desk", "g2", "--json").json
    assert (added["customer"], added["registry"]) == ("acme", url)
    site.call("group", "remove-terminal", "desk", "g1")
    assert site.call("group", "show", "desk", "--registry").out.splitlines()[0].split() == ["Terminals", "g2"]
    options = ["--group", "desk", "--sender", "g1", "--late-open", "never", "--max-age", "1d"]
    made = site.call("topic", "create", "deals", "--registry", *options, "--json").json
    assert (list(made["groups"]), made["late_open"], made["max_age"]) == (["desk"], "never", 86400.0)
    assert len(made["producers"]) == 1
    site.call("topic", "update", "deals", "--registry", "--sender", "all", "--ticket-scope", "message")
    shown = site.call("topic", "show", "deals", "--registry", "--json").json
    assert (shown["producers"], shown["ticket_scope"]) == (None, "message")
    assert [key["kv"] for key in site.call("key", "list", "deals", "--json").json] == [1]
    site.call("key", "rotate", "deals")
    keys = site.call("key", "list", "deals", "--json").json
    assert [(key["kv"], key["use"]) for key in keys] == [(2, "encrypts"), (1, "decrypts")]
    assert list(site.call("topic", "remove-group", "deals", "desk", "--json").json["groups"]) == []
    assert list(site.call("topic", "add-group", "deals", "desk", "--json").json["groups"]) == ["desk"]
    assert [row["name"] for row in site.call("topic", "list", "--registry", "--json").json] == ["deals"]
    assert site.call("topic", "delete", "deals", "--registry").status == 0
    assert site.call("group", "delete", "desk", "--registry").status == 0
    assert site.call("group", "list", "--registry", "--json").json == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "create", "g", "--max-attempts", "3"],
        ["group", "create", "t", "g", "--terminal", "x"],
        ["group", "create", "t", "g", "--registry"],
        ["group", "show", "g"],
        ["group", "show", "t", "g", "--registry"],
        ["topic", "create", "t", "--group", "g"],
        ["topic", "create", "t", "--registry", "--kind", "queue"],
        ["topic", "create", "t", "--registry", "--max-age", "none"],
        ["topic", "update", "t", "--registry"],
        ["key", "rotate"],
        ["key", "rotate", "t", "--terminal", "x"],
        ["publish", "t", "x", "--until", "acked", "--repeat", "2"],
        ["topology", "--route", "paris"],
    ],
)
def test_what_does_not_go_together(site: Place, arguments: list[str]) -> None:
    assert site.call(*arguments).status == 2


def test_a_group_without_its_topic_is_refused_and_made_nowhere(site: Place) -> None:
    refused = site.call("group", "create", "orphan", "--json")
    assert refused.status == 2
    assert "group create TOPIC orphan" in refused.error["message"]
    assert "group create orphan --registry" in refused.error["message"]
    assert site.call("group", "show", "orphan", "--registry", "--json").error["code"] == "unknown_group"


def test_a_terminal_that_never_ran_is_not_shown_as_good(site: Place) -> None:
    site.call("terminal", "create", "idle")
    [line] = [line for line in site.call("terminal", "list").out.splitlines() if line.startswith("idle")]
    assert "not seen" in line
    assert "good" not in line


def test_an_operator_of_two_registries_says_which_one(place: Place) -> None:
    """As after pasting the steps of docs/crossing.md beside a running ``up``."""
    with place.up("--http-port", str(free_port())), registry(place, "--port", "0"):
        refused = place.call("customer", "create", "acme", "--json")
        assert refused.error["code"] == "bad_context"
        assert "local, registry" in refused.error["message"]
        assert "--operator" in refused.error["hint"]
        made = place.call("customer", "create", "acme", "--operator", "registry", "--json").json
        assert made["registry"] == saved(place, "registry")["registry"]
        # The context of `up` stays the current one, and answers say whose the terminal is.
        told = place.call("customer", "create", "globex", "--operator", "registry").out
        assert "give --context globex" in told
        beside = place.call("terminal", "create", "t", "--json").json
        assert beside["registry"] == saved(place, "local")["registry"]


def test_credentials(site: Place) -> None:
    site.call("customer", "create", "globex", "--context", "glo")
    old = saved(site, "glo")["registry_token"]
    site.call("customer", "rotate", "--context", "glo")
    assert saved(site, "glo")["registry_token"] != old
    assert len(site.call("customer", "show", "--context", "glo", "--json").json["credentials"]) == 2
    site.call("customer", "revoke", "--context", "glo")
    assert len(site.call("customer", "show", "--context", "glo", "--json").json["credentials"]) == 1
    # As the operator, for one that has lost its own.
    shown = site.call("customer", "reset", "globex", "--context", "glo", "--show-token", "--json").json
    assert saved(site, "glo")["registry_token"] == shown["token"]
    site.call("customer", "update", "--name", "initech", "--context", "glo")
    assert "initech" in site.call("customer", "list").out
    assert site.call("customer", "create", "x", "--context", "glo", "--json").error["code"] == "context_taken"
    assert site.call("customer", "remove", "initech").status == 0
    assert site.call("customer", "show", "--context", "glo", "--json").error["code"] == "unauthenticated"
    assert site.call("customer", "remove", "initech", "--json").error["code"] == "unknown_customer"


def test_contexts_for_a_registry_by_hand(site: Place) -> None:
    known = saved(site, "acme")
    arguments = ["--registry", known["registry"], "--registry-token", known["registry_token"]]
    site.call("context", "add", "byhand", *arguments)
    assert site.call("customer", "show", "--context", "byhand", "--json").json["name"] == "acme"
    assert site.call("customer", "list", "--operator", "byhand", "--json").error["code"] == "bad_context"
    assert site.call("context", "add", "none").status == 2
    clear = site.call("context", "add", "far", "--registry", "http://far.example", "--json")
    assert clear.error["code"] == "bad_context"
    site.settings |= {"LANDBRIDGE_REGISTRY": known["registry"], "LANDBRIDGE_REGISTRY_TOKEN": "lbac1_x"}
    try:
        assert site.call("customer", "show", "--json").error["code"] == "unauthenticated"
    finally:
        del site.settings["LANDBRIDGE_REGISTRY"], site.settings["LANDBRIDGE_REGISTRY_TOKEN"]


async def say_held(site: Place, made: dict[str, Any], held: dict[str, int]) -> None:
    """As the terminal itself says it."""
    key = SecureKey.parse(made["secure_key"])
    identity = Identity(made["customer_id"], made["terminal_id"], key)
    state = LinkState(
        origin=identity.terminal, epoch=1, sequence=1, time=time.time_ns() // 1000, mode="client"
    )
    async with RegistryClient(saved(site, "acme")["registry"], identity=identity) as client:
        signed = linkstate.sign(state, key.signing_key(), identity.customer)
        await client.post_link_state(signed, held)


def test_what_holds_messages_is_removed_only_by_force(site: Place) -> None:
    made = site.call("terminal", "create", "lima", "--mode", "client", "--json").json
    site.call("group", "create", "archive", "--terminal", "lima")
    site.call("topic", "create", "logs", "--registry", "--group", "archive")
    asyncio.run(say_held(site, made, {"logs": 3}))
    for command in (
        ["topic", "delete", "logs", "--registry"],
        ["topic", "remove-group", "logs", "archive"],
        ["terminal", "remove", "lima"],
    ):
        refused = site.call(*command, "--json").error
        assert refused["code"] == "still_holds"
        assert "--force" in refused["hint"]
    assert site.call("topic", "remove-group", "logs", "archive", "--force").status == 0
    assert site.call("terminal", "remove", "lima", "--force").status == 0


def test_messages_need_a_terminal(site: Place) -> None:
    refused = site.call("publish", "orders", "x", "--json")
    assert refused.error["code"] == "bad_context"
    assert "registry" in refused.error["message"]


def test_credentials_are_masked_unless_asked_for(site: Place) -> None:
    token = saved(site, "acme")["registry_token"]
    assert token not in site.call("context", "show", "acme").out
    assert token in site.call("context", "show", "acme", "--show-token").out


# -- with a terminal: up -------------------------------------------------------------------------------


def test_up_is_a_bus_of_one_terminal_to_which_others_can_be_added(place: Place) -> None:
    http_port = str(free_port())
    with place.up("--http-port", http_port) as running:
        ready = running.ready
        assert ready["registry"] == ready["http"]
        [terminal] = place.call("terminal", "list", "--json").json
        assert (terminal["name"], terminal["terminal_id"]) == ("local", ready["terminal"])
        assert terminal["address"] == ready["url"]
        assert place.call("customer", "show", "--json").json["name"] == "local"
        assert place.call("network", "--json").json["mode"] == "server"
        assert place.call("terminal", "create", "second", "--mode", "client", "--json").status == 0
        before = saved(place, "local")
        assert running.stop().status == 0
    # Again, elsewhere: the same terminal, the same credentials, another address.
    with place.up("--http-port", http_port) as running:
        assert running.ready["terminal"] == ready["terminal"]
        after = saved(place, "local")
        for name in ("registry", "registry_token", "operator_token"):
            assert after[name] == before[name]
        rows = {row["name"]: row for row in place.call("terminal", "list", "--json").json}
        assert rows["local"]["address"] == running.ready["url"]
        assert [row["name"] for row in place.call("customer", "list", "--json").json] == ["local"]
        place.call("terminal", "update", "local", "--address", "lbs://bus.example:7420")
        running.stop()
    # What the admin says of its address stays.
    with place.up("--http-port", http_port):
        shown = place.call("terminal", "show", "local", "--json").json
        assert shown["address"] == "lbs://bus.example:7420"
    assert (place.data / "terminal.yml").stat().st_mode & 0o777 == 0o600
    assert (place.data / "master.key").stat().st_mode & 0o777 == 0o600


def test_up_without_a_registry(place: Place) -> None:
    with place.up("--http-port", str(free_port()), "--no-registry") as running:
        assert "registry" not in running.ready
        assert "stands alone" in place.call("network", "--json").error["message"]
        assert httpx.get(f"{running.ready['http']}/v1/registry").status_code == 404
    assert not (place.data / "registry").exists()


def test_up_whose_terminal_was_removed_or_revoked(place: Place) -> None:
    http_port = str(free_port())
    with place.up("--http-port", http_port) as running:
        first = running.ready["terminal"]
        place.call("terminal", "remove", "local", "--force")
        running.stop()
    with place.up("--http-port", http_port) as running:
        second = running.ready["terminal"]
        assert second not in (first, None)
        place.call("terminal", "revoke", "local")
        running.stop()
    with place.up("--http-port", http_port) as running:
        assert "terminal" not in running.ready  # for ever
        assert place.call("publish", "orders", "x").status == 0
        assert "revoked" in running.stop().err
