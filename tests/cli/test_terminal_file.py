"""A terminal's file, the environment and the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from landbridge.cli import terminal
from landbridge.crossing.ground import Settings
from landbridge.errors import BadRequest
from landbridge.node import terminal_file
from landbridge.node.terminal_file import KEYS, endpoint, read


def written(folder: Path, text: str) -> Path:
    file = folder / "landbridge.yml"
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = written(tmp_path, "terminal:\n  region: file\n  name: file\n  listen: file\n")
    environment = {"LANDBRIDGE_TERMINAL_REGION": "env", "LANDBRIDGE_TERMINAL_NAME": "env", "OTHER": "x"}
    assert read(file, environment, {"region": "flag"}) == {"region": "flag", "name": "env", "listen": "file"}


def test_values_are_read_alike_from_yaml_and_from_texts(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "terminal:\n  neighbours: [a, b]\n  dial: {a: 'lb://h:1'}\n  probe_busy: 1.5\n  max_transit: 1GiB\n"
        "  http_port: 0\n  own_certificates: false\n  limits: {max_topics: 5}\n",
    )
    texts = {
        "neighbours": "a, b",
        "dial": "a=lb://h:1",
        "probe_busy": "1500ms",
        "max_transit": "1GiB",
        "http_port": "0",
        "own_certificates": "no",
        "limits": "max_topics=5",
    }
    found = {
        "neighbours": ["a", "b"],
        "dial": {"a": "lb://h:1"},
        "probe_busy": 1.5,
        "max_transit": 1 << 30,
        "http_port": 0,
        "own_certificates": False,
        "limits": {"max_topics": "5"},
    }
    assert read(file, {}, {}) == read(None, {}, texts) == found


def test_every_setting_of_crossing_is_a_key_and_every_key_a_flag() -> None:
    assert set(Settings.__struct_fields__) <= set(KEYS)
    assert set(KEYS) == set(terminal.TerminalSettings.__struct_fields__)
    Settings(**{key: KEYS[key].read(text) for key, text in SAMPLES.items()})


SAMPLES: dict[str, Any] = {
    "region": "eu",
    "neighbours": "a",
    "dial": "a=lb://h:1",
    "probe_busy": "1s",
    "probe_idle": "2s",
    "max_transit": "1MB",
    "max_sealed": "1MB",
    "catch_up_rate": "0",
    "own_certificates": "true",
    "log_links": "true",
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("terminal:\n  sekure_key: x\n", "sekure_key"),
        ("terminal: []\n", "one key at its top"),
        ("terminal:\n  name: x\nother: 1\n", "one key at its top"),
        ("terminal: {", "not YAML"),
        ("terminal:\n  http_port: 70000\n", "0 to 65535"),
        ("terminal:\n  mode: master\n", "server or client"),
        ("terminal:\n  secure_key: '@nowhere'\n", "no file"),
        ("terminal:\n  probe_busy: soon\n", "span of time"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read(written(tmp_path, text), {}, {})


def test_unknown_keys_are_refused_with_the_known_ones_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        read(None, {"LANDBRIDGE_TERMINAL_COLOUR": "red"}, {})
    assert "LANDBRIDGE_TERMINAL_COLOUR" in str(refused.value)
    assert "secure_key" in refused.value.hint


def test_the_secret_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("lbsk1_x\n")
    file = written(tmp_path, "terminal:\n  secure_key: '@secret'\n  data: bus\n")
    # Meant from where the file is, wherever the command runs.
    assert read(file, {}, {}) == {"secure_key": "lbsk1_x", "data": str(tmp_path / "bus")}


def test_a_file_is_for_its_owner_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "new.yml"
    terminal_file.create(file)
    terminal_file.write(file, {"name": "paris", "region": "", "neighbours": ["a"]})
    assert file.stat().st_mode & 0o777 == 0o600
    assert read(file, {}, {}) == {"name": "paris", "neighbours": ["a"]}
    with pytest.raises(BadRequest, match="already"):
        terminal_file.create(file)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:2", ("::1", 2)),
        ("7420", ("127.0.0.1", 7420)),
        ("host:0", ("host", 0)),
    ],
)
def test_endpoints(text: str, found: tuple[str, int]) -> None:
    assert endpoint(text) == found


@pytest.mark.parametrize("text", ["", ":1", "::1:2", "host:", "host:x", "host:70000"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(BadRequest):
        endpoint(text)
