"""Terminals of one customer as real processes, by the command line: the guide, and what can be asked."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from landbridge.errors import BadRequest, TerminalUnreachable
from landbridge.node.member import plan_of
from landbridge.node.terminal_file import KEYS
from landbridge.testing import attach, run_terminal
from tests.cli.conftest import LIMIT, Place, Up, read_line, until
from tests.cli.test_registry import registry, saved
from tests.cli.test_up import certificate as certificate  # a fixture
from tests.ports import free_port
from tests.servers import name_of, shared_valkey

GUIDE = Path(__file__).parents[2] / "docs" / "crossing.md"


@contextmanager
def terminal(place: Place, *arguments: str) -> Iterator[Up]:
    process = place.start("terminal", *arguments, "--json")
    try:
        yield Up(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT)


# -- the guide -----------------------------------------------------------------------------------------


def steps() -> list[str]:
    """The lines of the guide's sh blocks; those to be run at once in the background end in &."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    ports = {port: str(free_port()) for port in ("7490", "7421", "7422", "7481")}
    text = re.sub("|".join(ports), lambda found: ports[found[0]], "".join(blocks))
    return text.splitlines()


@pytest.mark.timeout(LIMIT * 10)  # some thirty processes, one after the other
def test_the_guide(place: Place, tmp_path: Path) -> None:
    """As pasted into one shell, beside a ``landbridge up`` whose context is the current one."""
    with place.up("--http-port", str(free_port())):
        follow_the_guide(place, tmp_path)
        assert [row["name"] for row in place.call("terminal", "list", "--json").json] == ["local"]
        assert place.call("topic", "list", "--registry", "--json").json == []


def follow_the_guide(place: Place, tmp_path: Path) -> None:
    bin = Path(sys.executable).parent
    environment = {**place.environment, "PATH": f"{bin}:{place.environment['PATH']}"}
    running: list[subprocess.Popen[bytes]] = []
    waiting: list[str] = []

    def run_waiting() -> str:
        done = subprocess.run(
            ["sh", "-ec", "\n".join(waiting)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=LIMIT * 8,
        )
        assert done.returncode == 0, f"{waiting}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        waiting.clear()
        return done.stdout.decode()

    try:
        for line in steps():
            if exported := re.match(r"export (\w+)=(\w+)", line):
                environment[exported[1]] = exported[2]
            if not line.endswith("&"):
                waiting.append(line)
                continue
            run_waiting()
            words = line.removesuffix("&").split()[1:]
            running.append(place.start(*words, cwd=tmp_path, stderr=subprocess.DEVNULL))
            assert read_line(running[-1].stdout), f"{line} did not start"
        out = run_waiting()
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=LIMIT)
    assert '{"id": 1}' in out
    assert "paris → tokyo" in out
    assert (tmp_path / "bus.svg").read_text().startswith("<svg")


def test_every_key_of_a_terminals_file_is_in_the_guide() -> None:
    text = GUIDE.read_text()
    rows = "".join(re.findall(r"^\| (`.*?) \|", text, re.M))
    assert {key for key in KEYS if f"`{key}`" not in rows} == set()


# -- two terminals and a registry ----------------------------------------------------------------------


class Bus:
    """A registry with the customer acme, and its terminals paris (a server) and tokyo (a client)."""

    def __init__(self, place: Place, paris: Up, tokyo: Up) -> None:
        self.place, self.paris, self.tokyo = place, paris, tokyo

    def call(self, *arguments: str) -> Any:
        return self.place.call(*arguments, "--json").json


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    place = Place(tmp_path_factory.mktemp("bus"))
    file = str(place.folder / "paris.yml"), str(place.folder / "tokyo.yml")
    with ExitStack() as stack:
        stack.enter_context(registry(place, "--port", "0"))
        place.call("createMessageBusCustomer", "acme")
        address = f"lb://127.0.0.1:{free_port()}"
        place.call("createTerminal", "paris", "--address", address, "--write", file[0])
        listen = f"127.0.0.1:{free_port()}"
        place.call("createTerminal", "tokyo", "--mode", "client", "--listen", listen, "--write", file[1])
        place.call("createTerminalGroup", "billing")
        place.call("addTerminalToGroup", "billing", "tokyo")
        place.call("createMessageBusTopic", "orders")
        assert place.call("addGroupToTopic", "orders", "billing").out.startswith("orders is for billing (")
        paris = stack.enter_context(terminal(place, "--config", file[0], "--http-port", str(free_port())))
        tokyo = stack.enter_context(terminal(place, "start", "--config", file[1], "--http-port", "0"))
        yield Bus(place, paris, tokyo)


def take(bus: Bus, count: int = 1) -> list[Any]:
    found = bus.place.run(
        "subscribe", "orders", "--group", "billing", "--context", "tokyo", "--count", str(count)
    )
    assert found.status == 0, found.err
    return [json.loads(line) for line in found.out.splitlines()]


def best_path(place: Place, here: str, there: str) -> Any:
    """As ``here`` knows it; None while it knows none, or not even the other terminal."""
    shown = place.call("route", "show", here, there, "--context", here, "--json")
    return shown.json["best"] if shown.status == 0 else None


def test_a_message_crosses_and_can_be_followed(bus: Bus) -> None:
    assert bus.paris.ready["context"] == "paris"
    sent = bus.call("sendMessage", "orders", '{"n": 1}', "--context", "paris")
    assert take(bus) == [{"n": 1}]
    [place] = bus.call("where", sent["id"], "--context", "paris")["places"]
    [group] = place["groups"]
    assert (group["group"], group["at"]) == ("billing", "tokyo")
    assert bus.call("publish", "orders", '{"n": 2}', "--context", "paris", "--until", "arrived")["id"]
    text = bus.place.call("where", sent["id"], "--context", "paris").out
    assert "paris → tokyo" in text
    why = bus.call("why", sent["id"], "--context", "paris")["groups"]
    assert [(row["group"], row["terminal"], row["routes"][-1]) for row in why] == [
        ("billing", "tokyo", ["paris", "tokyo"])
    ]
    assert "paris → tokyo" in bus.place.call("why", sent["id"], "--context", "paris").out
    assert take(bus) == [{"n": 2}]


def test_routes_and_topology(bus: Bus, tmp_path: Path) -> None:
    assert until(lambda: best_path(bus.place, "paris", "tokyo"))["hops"] == ["paris", "tokyo"]
    until(lambda: best_path(bus.place, "tokyo", "paris"))
    assert "best" in bus.place.call("route", "show", "paris", "tokyo", "--context", "tokyo").out
    picture = tmp_path / "bus.svg"
    arguments = ["--context", "paris", "--svg", str(picture), "--route", "paris:tokyo"]
    shown = bus.place.call("topology", *arguments)
    assert {line.split()[0] for line in shown.out.splitlines()[1:3]} == {"paris", "tokyo"}
    assert "tokyo" in picture.read_text()
    # A file that can't be written, and a terminal that there isn't.
    assert bus.place.call("topology", "--context", "paris", "--svg", "/proc/x", "--json").error["message"]
    assert bus.place.call("route", "show", "paris", "rome", "--context", "paris").status
    found = bus.call("network", "--context", "paris")
    assert (found["mode"], found["terminal"]) == ("server", bus.paris.ready["terminal"])
    assert "forwarder" in bus.place.call("network", "--context", "paris").out


def test_the_doctor_looks_at_registry_and_links(bus: Bus) -> None:
    until(lambda: bus.call("network", "--context", "paris")["links"])
    arguments = ["--context", "paris", "--port", str(free_port()), "--http-port", str(free_port())]
    found = until(lambda: (said := bus.place.call("doctor", *arguments, "--json")).status == 0 and said)
    checks = {check["check"]: (check["state"], check["detail"]) for check in found.json["checks"]}
    assert checks["registry"] == ("ok", "answers the terminal")
    assert checks["links"][1].startswith("up: ")
    assert checks["certificate"][0] == "ok"


def test_messages_by_http(bus: Bus) -> None:
    token = saved(bus.place, "paris")["token"]
    with httpx.Client(base_url=bus.paris.ready["http"], timeout=LIMIT) as http:
        path, auth = "/v1/topics/orders/messages", {"authorization": f"Bearer {token}"}
        sent = http.post(path, json={"n": 3}, headers=auth, params={"until": "arrived"})
        assert sent.status_code == 201
        assert set(sent.json()) == {"id", "offset"}
        raw = http.post(path, content=b"4", headers={**auth, "landbridge-id": "mine", "landbridge-key": "k"})
        assert raw.json()["id"] == "mine"
        refused = http.post(path, json={"n": 5})
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        bad = http.post(path, content=b"{", headers={**auth, "content-type": "application/json"})
        assert (bad.status_code, bad.json()["code"]) == (400, "bad_payload")
        assert bad.headers["content-type"] == "application/problem+json"
        assert http.post(path, headers=auth, params={"until": "soon"}).status_code == 400
        assert http.get(path, headers=auth).status_code == 405
        operations = http.get("/openapi.json").json()["paths"]
        assert operations["/v1/topics/{topic}/messages"]["post"]["operationId"] == "sendMessage"
        assert http.get("/healthz").text == "ok\n"
    assert take(bus, 2) == [{"n": 3}, 4]


def test_a_restarted_terminal_goes_on(bus: Bus) -> None:
    file = yaml.safe_load((bus.place.folder / "tokyo.yml").read_text())["terminal"]
    assert (bus.place.folder / "tokyo.yml").stat().st_mode & 0o777 == 0o600
    stopped = bus.tokyo.stop()
    assert stopped.status == 0
    assert "Traceback" not in stopped.err
    assert file["secure_key"] not in stopped.err
    bus.place.call("publish", "orders", '{"n": 6}', "--context", "paris")
    with terminal(bus.place, "--config", str(bus.place.folder / "tokyo.yml"), "--http-port", "0") as again:
        assert again.ready["terminal"] == file["terminal_id"]
        assert take(bus) == [{"n": 6}]


def test_enrolment(bus: Bus, tmp_path: Path) -> None:
    bus.place.call("terminal", "create", "osaka", "--mode", "client", "--no-key", "--context", "acme")
    made = bus.call("terminal", "enrol", "osaka", "--context", "acme")
    file = tmp_path / "osaka.yml"
    url = saved(bus.place, "acme")["registry"]
    start = ["--enrol", made["token"], "--registry", url, "--config", str(file), "--listen", "0"]
    with terminal(bus.place, *start, "--http-port", "0") as osaka:
        assert osaka.ready["context"] == "osaka"
        assert file.stat().st_mode & 0o777 == 0o600
        known = yaml.safe_load(file.read_text())["terminal"]
        assert known["terminal_id"] == osaka.ready["terminal"] == made["terminal_id"]
    # The token was good once, and what is there is not written over.
    again = ["terminal", "--enrol", made["token"], "--registry", url, "--json", "--config"]
    assert "already" in bus.place.run(*again, str(file)).error["message"]
    other = tmp_path / "other.yml"
    assert bus.place.run(*again, str(other)).error["code"] == "unauthenticated"
    assert not other.exists()


def test_a_revoked_terminal_does_not_start(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "lima.yml"
    made = ["terminal", "create", "lima", "--mode", "client", "--write", str(file), "--context", "acme"]
    assert bus.place.call(*made).status == 0
    assert bus.place.call("terminal", "revoke", "lima", "--context", "acme").status == 0
    refused = bus.place.run("terminal", "--config", str(file), "--listen", "0", "--http-port", "0", "--json")
    assert refused.status == 30
    told = json.loads(refused.err.splitlines()[-1])["error"]
    assert (told["code"], "revoked" in told["hint"]) == ("unauthenticated", True)
    assert "lima" not in bus.place.call("context", "list").out


def test_names_that_were_mistyped(bus: Bus) -> None:
    for command in (["terminal", "show", "pariss", "--context", "acme"], ["network", "--context", "pariss"]):
        assert bus.place.call(*command, "--json").error["hint"].startswith("did you mean paris?")


def test_another_address_than_the_registrys_is_told(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "rome.yml"
    address = "lb://127.0.0.1:9"
    made = ["terminal", "create", "rome", "--address", address, "--write", str(file), "--context", "acme"]
    assert bus.place.call(*made).status == 0
    start = ["--config", str(file), "--listen", "0", "--http-port", "0", "--address", "lb://127.0.0.1:10"]
    with terminal(bus.place, *start) as rome:
        assert rome.process.stderr is not None
        told = next(line for line in iter(rome.process.stderr.readline, b"") if b"another address" in line)
        assert json.loads(told)["hint"] == "landbridge terminal update rome --address lb://127.0.0.1:10"


def test_all_interfaces_with_a_certificate_of_the_registry(bus: Bus, tmp_path: Path) -> None:
    file, port = tmp_path / "oslo.yml", free_port()
    made = ["terminal", "create", "oslo", "--address", f"lbs://127.0.0.1:{port}", "--write", str(file)]
    assert bus.place.call(*made, "--listen", f"0.0.0.0:{port}", "--context", "acme").status == 0
    with terminal(bus.place, "--config", str(file), "--http-port", str(free_port())) as oslo:
        assert oslo.ready["url"] == f"lbs://127.0.0.1:{port}"
        assert bus.place.call("publish", "here", "x", "--context", "oslo").status == 0
        import ssl

        trust = ssl.create_default_context(cafile=saved(bus.place, "oslo")["ca"])
        assert httpx.get(f"{oslo.ready['http']}/healthz", verify=trust).text == "ok\n"
        # And the others link to it.
        until(lambda: best_path(bus.place, "oslo", "paris"))


def test_links_under_certificates_of_ones_own(
    place: Place, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    file = tmp_path / "second.yml"
    listen = ["--host", "0.0.0.0", "--http-port", str(free_port()), "--tls-cert", cert, "--tls-key", key]
    with place.up(*listen):
        assert (
            place.call("terminal", "create", "second", "--mode", "client", "--write", str(file)).status == 0
        )
        start = ["--config", str(file), "--listen", "0", "--http-port", "0"]
        trust = ["--own-certificates", "true", "--tls-ca", cert]
        with terminal(place, *start, *trust):
            until(lambda: best_path(place, "second", "local"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "/nowhere.yml"], "no file"),
        (["--terminal-id", "ter_x", "--secure-key", "x"], "customer_id"),
        (["--terminal-id", "t", "--customer-id", "c", "--secure-key", "x", "--registry", "http://127.0.0.1:1"],
         "not a secure key"),
        (["--enrol", "x"], "where the registry is"),
    ],
)  # fmt: skip
def test_what_a_terminal_refuses(place: Place, tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = place.run("terminal", *arguments, "--json", cwd=tmp_path)
    assert message in refused.error["message"]


async def test_a_port_in_use_hints_at_options_that_exist() -> None:
    async with run_terminal() as running:
        port = await running.listen("127.0.0.1", 0)
        with pytest.raises(TerminalUnreachable) as refused:
            await running.listen("127.0.0.1", port)
    assert "--port of 'up'" in refused.value.hint
    assert "--listen of 'terminal'" in refused.value.hint


# -- the gateway alone ---------------------------------------------------------------------------------


async def test_rights_by_http_are_the_terminals_to_check() -> None:
    from landbridge.gateways.http import HttpGateway
    from landbridge.node.assembly import dial_to

    async with run_terminal() as running, attach(running) as bus:
        gateway: Any = HttpGateway(dial_to(running))
        transport = httpx.ASGITransport(app=gateway)
        token = running.issue_token("shop", ["publish:orders"], 60.0)
        async with httpx.AsyncClient(transport=transport, base_url="http://terminal") as http:
            http.headers["authorization"] = f"Bearer {token}"
            assert (await http.post("/v1/topics/others/messages", content=b"x")).status_code == 403
            large = await http.post("/v1/topics/orders/messages", content=b"x" * (5 << 20))
            assert (large.status_code, large.json()["code"]) == (413, "too_large")
            sent = await http.post("/v1/topics/orders/messages", json={"n": 1})
            assert sent.json()["offset"] == 0
        async with asyncio.timeout(LIMIT):
            async for message in bus.subscribe("orders", group="g"):
                assert message.json() == {"n": 1}
                assert message.headers["content-type"] == "application/json"
                break
        await gateway.close()


# -- several nodes -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_terminal_from_a_file_has_several_nodes(place: Place, tmp_path: Path) -> None:
    """The node that is the home has the links, and another one when it is killed."""
    store = tmp_path / "bus.url"
    store.write_text(shared_valkey().url(name_of(tmp_path), units=4))
    store.chmod(0o600)
    file = str(tmp_path / "paris.yml")
    with ExitStack() as stack:
        stack.enter_context(place.up("--http-port", str(free_port())))
        call = place.call
        local = f"lb://127.0.0.1:{free_port()}"
        london = str(tmp_path / "london.yml")
        assert call("terminal", "create", "london", "--address", local, "--write", london).status == 0
        assert call("terminal", "create", "paris", "--mode", "client", "--write", file).status == 0
        for command in (
            "group create billing --registry",
            "group add-terminal billing paris",
            "topic create orders --registry",
            "topic add-group orders billing",
        ):
            found = call(*command.split())
            assert found.status == 0, found.err
        stack.enter_context(terminal(place, "--config", london, "--http-port", "0"))

        def start(name: str) -> Up:
            listen = ("--listen", f"127.0.0.1:{free_port()}", "--http-port", "0")
            settings = ("--config", file, "--store", f"@{store}", "--node", name, "--node-life", "2s")
            return stack.enter_context(terminal(place, *settings, *listen))

        def rows() -> Any:
            listed = place.call("node", "list", "--context", "paris", "--json")
            return listed.json if listed.status == 0 else []

        def published(id: int) -> None:
            sent = place.call("publish", "orders", json.dumps({"id": id}), "--context", "london")
            assert sent.status == 0, sent.err

        def taken() -> Any:
            got = place.run("subscribe", "orders", "--group", "billing", "--context", "paris", "--count", "1")
            assert got.status == 0, got.err
            return json.loads(got.out)

        one, two = start("one"), start("two")
        # Linked, it has all units at the home.
        assert until(lambda: [(row["name"], len(row["units"])) for row in rows()] == [("one", 4), ("two", 0)])
        assert until(lambda: best_path(place, "london", "paris"))
        published(1)
        assert taken() == {"id": 1}
        one.process.kill()
        published(2)
        assert taken() == {"id": 2}
        assert [row["name"] for row in rows() if row["home"]] == ["two"]
        assert two.process.poll() is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"together": True}, "together is for a node"),
        ({"node": "one", "node_life": 0.5}, "at least 1 s"),
        ({"node": "one", "address": "lbs://paris.example.com:7420"}, "certificate of the registry"),
    ],
)
def test_settings_of_a_node_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    named = {"customer_id": "cus_1", "terminal_id": "ter_1", "secure_key": "lbsk1_x", "name": "paris"}
    with pytest.raises(BadRequest, match=said):
        plan_of(named | wrong)
    assert plan_of(named | {"node": "one"}).node == "one"
