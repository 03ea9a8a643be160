"""What is under ``deploy/``: each file is read by what it is for, or by what that would do with it."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import ssl
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

from landbridge.cli.main import app
from landbridge.node.plan import NodePlan
from tests.certificates import self_signed
from tests.cli.conftest import LIMIT, Place
from tests.ports import free_port
from tests.servers import name_of, shared_valkey

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = sorted((DEPLOY / "compose").glob("*.yml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SCRIPTS = sorted(DEPLOY.glob("**/*.sh"))
METRIC = re.compile(r"\blandbridge_\w+")
#: Options that belong to nodes.
OF_NODES = {"--node", "--address", "--tls-ca"}


def options_of(*words: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return {name for option in command.params for name in option.opts}


def check_up(words: list[str]) -> None:
    """The options of a ``landbridge up`` are options that it has."""
    given = {word for word in words if word.startswith("--")}
    if "node" not in NodePlan.__struct_fields__:
        given -= OF_NODES
    assert given <= options_of("up"), words


def check_start(words: list[str]) -> None:
    """The options of a ``landbridge terminal start`` are options that it has."""
    given = {word for word in words if word.startswith("--")}
    assert given <= options_of("terminal", "start"), words


# -- the container -------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def test_the_container_is_made_of_what_is_there() -> None:
    found = instructions()
    assert [rest for word, rest in found if word == "FROM"] == [
        "python:3.13-slim AS build",
        "python:3.13-slim",
    ]
    allowed = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for _, rest in [each for each in found if each[0] == "COPY" and "--from" not in each[1]]:
        sources = [word for word in rest.split()[:-1] if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(source == each or source.startswith(f"{each}/") for each in allowed), source
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = re.search(r"'\.\[(.*?)\]'", str(found))
    assert wanted is not None
    assert set(wanted[1].split(",")) <= extras.keys()


def test_the_container_has_a_user_a_volume_and_a_check() -> None:
    found = instructions()
    words = [word for word, _ in found]
    assert dict(found)["USER"] == "landbridge"
    assert words.index("USER") < words.index("CMD")
    assert dict(found)["VOLUME"] == "/var/lib/landbridge"
    assert '"landbridge-healthy"' in dict(found)["HEALTHCHECK"]
    check_up(json.loads(dict(found)["CMD"])[2:])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "tls"])
def test_the_check_of_the_container_says_whether_a_terminal_lives(
    place: Place, tmp_path: Path, sealed: bool
) -> None:
    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(DEPLOY / "container" / "healthy.py"), *arguments],
            check=False, capture_output=True, text=True, timeout=LIMIT,
            env={**os.environ, "LANDBRIDGE_HTTP_PORT": str(port)},
        )  # fmt: skip

    port = free_port()
    assert check().returncode == 1
    cert, key = self_signed(tmp_path)
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)] if sealed else []
    with place.up("--http-port", str(port), *tls):
        for arguments in ([], ["ready"]):
            answer = check(*arguments)
            assert (answer.returncode, answer.stdout) == (0, "ok\n"), answer.stderr


# -- compose -------------------------------------------------------------------------------------------


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    return found


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.stem)
def test_a_compose_file_fits_together(file: Path) -> None:
    everything = yaml.safe_load(file.read_text())
    known = services(file)
    nodes = [name for name, service in known.items() if service["image"] == "landbridge"]
    assert nodes == ["node1", "node2", "node3"]
    for name, service in known.items():
        host = service["image"].split("/")[0]
        assert "." not in host.split(":")[0], "an image of a registry that is named"
        assert set(service.get("depends_on", {})) <= known.keys()
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            made = source in ("./certs", "./valkey-password.conf")  # by prepare.sh
            assert source in everything["volumes"] or made or (file.parent / source).exists(), source
            assert target.startswith("/")
        for value in service.get("environment", {}).values():
            for variable in re.findall(r"\$\{(\w+)", str(value)):
                assert f"{variable}=" in (DEPLOY / "compose" / "prepare.sh").read_text()
        assert "PASSWORD" not in str(service.get("command", ""))  # everybody could read it there
        if name in nodes:
            command = service["command"]
            assert command[:4] == ["landbridge", "up", "--node", name]
            check_up(command[2:])
            assert f"DNS:{name}," in (DEPLOY / "compose" / "prepare.sh").read_text()
            assert service["depends_on"]
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
            assert service["build"]["dockerfile"] == "deploy/container/Containerfile"
            assert (file.parent / service["build"]["context"]).resolve() == ROOT
    ports = [port.split(":")[0] for service in known.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))


def test_the_cluster_is_made_of_all_its_servers() -> None:
    known = services(DEPLOY / "compose" / "valkey-cluster.yml")
    servers = [name for name in known if name.startswith("valkey")]
    assert len(servers) == 6
    addresses = [known[name]["networks"]["bus"]["ipv4_address"] for name in servers]
    assert known["cluster"]["command"] == ["sh", "/make-cluster.sh", *addresses]
    assert set(known["cluster"]["depends_on"]) == set(servers)
    url = known["node1"]["environment"]["LANDBRIDGE_STORE"]
    assert all(f"{address}:6379" in url for address in addresses[:3])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_can_be_read_by_a_plain_shell(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=LIMIT)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_what_is_prepared_is_what_a_terminal_takes(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "compose"
    shutil.copytree(DEPLOY / "compose", folder)

    def prepare() -> dict[str, bytes]:
        names = ["bus.example.com", "10.1.2.3"]
        subprocess.run([str(folder / "prepare.sh"), *names], check=True, capture_output=True, timeout=LIMIT)
        made = [
            ".env",
            "valkey-password.conf",
            *(f"certs/{each.name}" for each in (folder / "certs").iterdir()),
        ]
        return {name: (folder / name).read_bytes() for name in made}

    first = prepare()
    assert prepare() == first
    assert (folder / ".env").stat().st_mode & 0o077 == 0
    settings = dict(line.split("=", 1) for line in first[".env"].decode().splitlines() if "=" in line)
    assert settings["STORE_PASSWORD"] in first["valkey-password.conf"].decode()
    certs = folder / "certs"
    port = free_port()
    place.settings["LANDBRIDGE_MASTER_KEY"] = settings["LANDBRIDGE_MASTER_KEY"]
    tls = ["--tls-cert", str(certs / "cert.pem"), "--tls-key", str(certs / "key.pem")]
    with place.up("--http-port", str(port), *tls):
        trusting = ssl.create_default_context(cafile=str(certs / "authority.pem"))
        assert httpx.get(f"https://127.0.0.1:{port}/healthz", verify=trusting).text == "ok\n"
    named = subprocess.run(
        ["openssl", "x509", "-in", str(certs / "cert.pem"), "-noout", "-text"],
        check=True, capture_output=True, text=True, timeout=LIMIT,
    ).stdout  # fmt: skip
    for name in ("DNS:node3", "DNS:bus.example.com", "IP Address:10.1.2.3"):
        assert name in named


# -- systemd -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_what_there_is(unit: Path) -> None:
    text = unit.read_text()
    [start] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = start.split()
    assert words[0] == "/opt/landbridge/bin/landbridge"
    assert words[1] == "up" or words[1:3] == ["terminal", "start"]
    check = check_up if words[1] == "up" else check_start
    check(words[2:])
    for file in re.findall(r"install -m \d+ (\S+)", text):
        assert (ROOT / file).exists()
    for file in (DEPLOY / "systemd").glob("*.env"):
        check = check_start if "terminal" in file.stem else check_up
        for options in re.findall(r"^#?LANDBRIDGE_OPTIONS=(.*)$", file.read_text(), re.MULTILINE):
            check(options.split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_one_that_systemd_takes_and_finds_safe(unit: Path, tmp_path: Path) -> None:
    name = unit.name.replace("@.", "@one.")
    here = unit.read_text().replace("/opt/landbridge/bin/landbridge", sys.executable)
    (tmp_path / unit.name).write_text(here)
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        check=False, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert (told.returncode, unit.name in told.stderr) == (0, False), told.stderr
    plain = tmp_path / "landbridge.service"
    plain.write_text(here)
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(plain)],
        check=False, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    if "unrecognized option" not in judged.stderr:
        assert judged.returncode == 0, judged.stdout  # an exposure of 3.0 of 10 at most


# -- monitoring ----------------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_program_writes() -> None:
    program = DEPLOY / "monitoring" / "dashboard.py"
    written: Any = runpy.run_path(str(program))["dashboard"]()
    found = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    assert found == written, f"python {program.relative_to(ROOT)} > deploy/monitoring/dashboard.json"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in found["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)


def expressions() -> dict[str, str]:
    """Where it stands → the expression."""
    monitoring = DEPLOY / "monitoring"
    rules = yaml.safe_load((monitoring / "alerts.yml").read_text())
    found = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    for panel in json.loads((monitoring / "dashboard.json").read_text())["panels"]:
        found |= {
            f"{panel['title']} {target['refId']}": target["expr"] for target in panel.get("targets", [])
        }
    return found


def served(place: Place, *options: str) -> str:
    """The metrics of a terminal that is used."""
    port = free_port()
    with place.up("--http-port", str(port), "--mqtt", "0", *options):
        assert place.call("topic", "create", "orders").status == 0
        assert place.call("group", "create", "orders", "billing").status == 0
        assert place.call("webhook", "create", "orders", "shop", "https://shop.example.com/").status == 0
        token = place.call("context", "show", "--show-token", "--json").json["token"]
        headers = {"authorization": f"Bearer {token}"}
        return httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=LIMIT).text


def test_alerts_and_dashboard_name_metrics_that_are_served(place: Place, tmp_path: Path) -> None:
    """By a terminal, or by one of its nodes."""
    store = shared_valkey().url(name_of(tmp_path), units=2)
    metrics = served(place) + served(Place(tmp_path / "node"), "--store", store, "--node", "one")
    names = set(re.findall(r"^(landbridge_\w+)", metrics, re.MULTILINE))
    labels = {
        name: set(re.findall(r"(\w+)=", line)) for name, line in re.findall(r"^(\w+)(.*) ", metrics, re.M)
    }
    assert expressions()
    for where, expression in expressions().items():
        for name in METRIC.findall(expression):
            assert name in names, where
    rules = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - {"instance"}
        for name in METRIC.findall(rule["expr"]):
            assert told <= labels[name], rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_takes_the_rules_and_the_settings(tmp_path: Path) -> None:
    for file in ("alerts.yml", "prometheus.yml"):
        shutil.copy(DEPLOY / "monitoring" / file, tmp_path)
    for check in (["rules", "alerts.yml"], ["config", "--syntax-only", "prometheus.yml"]):
        told = subprocess.run(
            ["promtool", "check", *check],
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=tmp_path,
        )
        assert told.returncode == 0, told.stdout + told.stderr
