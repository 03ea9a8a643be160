"""``landbridge store``: damage is found and named, the index is made anew, and the rest is told."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from landbridge.node import logs
from tests.cli.conftest import Place
from tests.ports import free_port


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a registry and messages, of which copies are spoiled."""
    place = Place(tmp_path_factory.mktemp("used"))
    with place.up("--http-port", str(free_port())) as running:
        for letter in "abc":
            place.call("publish", "orders", letter * 2000)
        place.call("group", "create", "orders", "shipping")
        running.stop()
    return place.data


@pytest.fixture
def data(used: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(used, tmp_path / "data")
    return tmp_path / "data"


def flip(data: Path, text: bytes) -> None:
    segment = next(path for path in sorted((data / "bus").glob("*.segment")) if text in path.read_bytes())
    content = bytearray(segment.read_bytes())
    content[content.index(text) + 1] ^= 1
    segment.write_bytes(content)


def of_bus(found: Any) -> Any:
    return next(store for store in json.loads(found.out)["stores"] if store["store"] == "bus")


def test_all_is_well(place: Place, data: Path) -> None:
    for command in "check", "repair":
        found = place.call("store", command, "--data", str(data), "--json")
        assert found.status == 0, found.out
        said = json.loads(found.out)
        assert said["ok"]
        assert [store["store"] for store in said["stores"]] == ["bus", "registry"]
        assert all(not store["findings"] for store in said["stores"])
        plain = place.call("store", command, "--data", str(data))
        assert plain.out.count("all is well") == 2
        assert str(data / "bus") in plain.out


def test_damaged_messages_are_named(place: Place, data: Path) -> None:
    flip(data, b"b" * 2000)
    for command in "check", "repair":
        found = place.call("store", command, "--data", str(data), "--json")
        assert found.status == 70
        (finding,) = of_bus(found)["findings"]
        assert "topic orders (log " in finding
        assert "offset 1" in finding
    plain = place.call("store", "check", "--data", str(data))
    assert f"landbridge store repair --data {data}" in plain.out
    assert "group seek" in place.call("store", "repair", "--data", str(data)).out


@pytest.mark.parametrize("garbage", [b"", b"garbage" * 5000])
def test_a_damaged_index_is_made_anew(place: Place, data: Path, garbage: bytes) -> None:
    for store in "bus", "registry":
        (data / store / "index.db").write_bytes(garbage)
    found = place.call("store", "repair", "--data", str(data), "--json")
    assert found.status == 0, found.out
    assert "made anew" in of_bus(found)["repaired"][0]
    assert not list(data.glob("*/*.aside"))
    assert place.call("store", "check", "--data", str(data)).status == 0
    place.settings["LANDBRIDGE_DATA"] = str(data)
    with place.up("--context", "again"):
        read = place.call("subscribe", "orders", "--count", "3", "--from", "earliest", "--context", "again")
        assert read.out.count("aaa") > 0


def test_a_lost_segment_is_told(place: Place, data: Path) -> None:
    for file in (data / "bus").glob("*.segment"):
        content = bytearray(file.read_bytes())
        at = content.find(b"a" * 2000)
        if at >= 0:
            content[at - 200 : at + 2100] = bytes(2300)
            file.write_bytes(content)
    found = place.call("store", "repair", "--data", str(data), "--json")
    assert found.status == 70
    assert any("orders" in finding or "segment" in finding for finding in of_bus(found)["findings"])


def test_a_store_in_use_is_left_alone(place: Place, data: Path) -> None:
    descriptor = os.open(data / "bus" / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = {path.name for path in (data / "bus").iterdir()}
        for command in "check", "repair":
            found = place.call("store", command, "--data", str(data), "--json")
            assert found.error["code"] == "store_busy"
            assert "stop the terminal" in found.error["hint"]
        assert {path.name for path in (data / "bus").iterdir()} == before
    finally:
        os.close(descriptor)


def test_no_store(place: Place, tmp_path: Path) -> None:
    found = place.call("store", "check", "--data", str(tmp_path), "--json")
    assert found.error["code"] == "bad_request"
    (tmp_path / "bus.db").write_bytes(b"")
    found = place.call("store", "check", "--data", str(tmp_path), "--json")
    assert "0.1" in found.error["hint"]


def test_a_repair_that_fails_leaves_the_index(place: Place, data: Path, monkeypatch: Any) -> None:
    from landbridge.errors import StoreFull
    from landbridge.stores.journal import journal

    def refuse(*_: Any) -> None:
        raise StoreFull("no room (as told)")

    before = (data / "bus" / "index.db").read_bytes()
    monkeypatch.setattr(journal, "rebuild", refuse)
    found = place.call("store", "repair", "--data", str(data), "--json")
    assert found.error["code"] == "store_full"
    assert (data / "bus" / "index.db").read_bytes() == before


def test_the_doctor_names_the_way_out(place: Place, data: Path) -> None:
    flip(data, b"c" * 2000)
    found = place.call("doctor", "--deep", "--data", str(data), "--json")
    checks = [check for check in json.loads(found.out)["checks"] if check["check"] == "store"]
    assert checks[0]["state"] == "fail"
    assert "topic orders" in checks[0]["detail"]
    assert f"landbridge store repair --data {data}" in checks[0]["hint"]


def test_long_openings_are_logged(monkeypatch: Any) -> None:
    monkeypatch.setattr(logs, "TOLD_AFTER", 0.0)
    with structlog.testing.capture_logs() as lines, logs.progress("opening the store") as tell:
        tell(1, 4)
        tell(2, 4)
    assert [line["event"] for line in lines] == ["opening the store", "opening the store: done"]
    assert lines[0]["percent"] == 25
