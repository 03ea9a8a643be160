"""``landbridge backup`` beside real processes: what a backup has, and what a restore leads to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Place, finish, until
from tests.ports import free_port


def consumed(place: Place, count: int, group: str) -> list[int]:
    lines = place.call(
        "subscribe", "orders", "--group", group, "--from", "earliest", "--count", str(count), "--json"
    ).lines
    return [json.loads(line["payload"]) for line in lines]


def length(place: Place) -> int:
    return int(place.call("topic", "show", "orders", "--json").json["messages"])


def create(place: Place, *options: str) -> Path:
    file = place.folder / "a.backup"
    made = place.call("backup", "create", str(file), "--json", *options)
    assert made.status == 0, made.err
    return file


def test_a_backup_made_while_publishing_goes_on_is_restored(place: Place) -> None:
    """One producer writes 0, 1, 2, … until it is stopped: a copy of one moment is 0, 1, …, n - 1."""
    ports = ["--port", str(free_port()), "--http-port", str(free_port())]
    with place.up(*ports) as running:
        endless = "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(1e-3)"
        source = subprocess.Popen([sys.executable, "-c", endless], stdout=subprocess.PIPE)
        publishing = place.start("publish", "orders", stdin=source.stdout)
        assert source.stdout is not None
        source.stdout.close()
        until(lambda: place.call("topic", "show", "orders").status == 0 and length(place) > 300)
        file = create(place)
        behind = length(place)
        until(lambda: length(place) > behind)
        source.terminate()
        source.wait()
        finish(publishing)
        ids = place.call("terminal", "list", "--json").json[0]
        info = place.call("info", "--json").json
        verified = place.run("backup", "verify", str(file), "--json").json
        in_use = place.run("backup", "restore", str(file), "--json", "--replace")
        assert in_use.error["code"] == "store_busy"
        end = length(place)
        running.stop()
    assert file.stat().st_mode & 0o777 == 0o600
    assert verified["ok"]
    assert verified["incarnation"] == info["incarnation"]
    assert (verified["terminal_id"], verified["context"]) == (ids["terminal_id"], "local")
    names = {member["name"].partition("/")[0] for member in verified["members"]}
    assert names == {"bus", "registry", "master.key", "terminal.yml", "context.json"}

    refused = place.run("backup", "restore", str(file), "--json")
    assert refused.error["code"] == "bad_request"
    assert "--replace" in refused.error["hint"]
    restored = place.run("backup", "restore", str(file), "--json", "--replace").json
    assert restored["next"] == "landbridge up"
    assert (restored["context"], restored["was_incarnation"]) == ("local", info["incarnation"])
    assert (Path(restored["moved_to"]) / "bus").exists()
    for path in (place.data, *place.data.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not [path for path in place.folder.iterdir() if path.name.startswith(".")]

    with place.up(*ports):
        count = length(place)
        assert 300 < count < end
        assert consumed(place, count, "all") == list(range(count))
        after = place.call("info", "--json").json["incarnation"]
        assert after == restored["incarnation"] != info["incarnation"]
        checks = place.call("doctor", "--json").json["checks"]
        assert after in next(check["detail"] for check in checks if check["check"] == "terminal")
        # The credentials of the context are those of the restored registry.
        assert place.call("terminal", "list", "--json").json[0]["terminal_id"] == ids["terminal_id"]
        assert place.call("customer", "list", "--json").status == 0


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_every_flipped_byte_is_found(place: Place, passphrase: str | None) -> None:
    if passphrase is not None:
        place.settings["LANDBRIDGE_BACKUP_PASSPHRASE"] = passphrase
    with place.up("--http-port", "0"):
        place.call("publish", "orders", "a-readable-message")
        file = create(place)
    data = bytearray(file.read_bytes())
    assert (b"a-readable-message" in data) == (passphrase is None)
    assert place.call("backup", "verify", str(file)).status == 0
    for at in (0, 600, len(data) // 2, len(data) - 5000, len(data) - 1):
        data[at] ^= 1
        file.write_bytes(data)
        refused = place.call("backup", "verify", str(file), "--json")
        assert refused.error["code"] == "bad_backup", at
        elsewhere = str(place.folder / "elsewhere")
        assert place.call("backup", "restore", str(file), "--data", elsewhere, "--json").status == 45
        assert not os.path.exists(elsewhere)
        data[at] ^= 1
    file.write_bytes(data[:-4096])
    assert place.call("backup", "verify", str(file), "--json").error["code"] == "bad_backup"
    assert not [path for path in place.folder.iterdir() if path.name.startswith(".")]


def test_a_sealed_backup_wants_its_passphrase(place: Place) -> None:
    secret = place.folder / "secret"
    secret.write_text("one\n")
    with place.up("--http-port", "0"):
        file = create(place, "--passphrase-file", str(secret))
    assert place.call("backup", "verify", str(file), "--json").error["code"] == "bad_request"
    secret.write_text("two\n")
    wrong = ["backup", "verify", str(file), "--passphrase-file", str(secret), "--json"]
    assert place.call(*wrong).error["code"] == "bad_backup"
    verified = place.run("backup", "verify", str(file), "--passphrase-file", "-", input=b"one\n")
    assert verified.status == 0, verified.err


def test_a_backup_goes_into_another_folder_and_context(place: Place) -> None:
    """As on another machine, where nothing of it is left."""
    with place.up("--http-port", "0") as running:
        place.call("publish", "orders", "1")
        file = create(place)
        other = str(place.folder / "other")
        command = ["backup", "restore", str(file), "--data", other, "--json"]
        beside = place.call(*command, "--context", "copy").json
        assert beside["context"] == "copy"
        assert beside["next"] == f"landbridge up --data {other} --context copy"
        with place.up("--http-port", "0", "--data", other, "--context", "copy"):
            lives = [place.call("info", "--context", name, "--json").json for name in ("local", "copy")]
        assert lives[0]["incarnation"] != lives[1]["incarnation"]
        running.stop()
    elsewhere = Place(place.folder / "machine")
    elsewhere.folder.mkdir()
    assert elsewhere.call("backup", "restore", str(file), "--json").json["context"] == "local"
    with elsewhere.up("--http-port", "0"):
        assert consumed(elsewhere, 1, "all") == [1]


def test_restore_leaves_foreign_files_where_they_are(place: Place) -> None:
    with place.up("--http-port", "0") as running:
        file = create(place)
        running.stop()
    (place.data / "terminals").mkdir()
    refused = place.call("backup", "restore", str(file), "--replace", "--json")
    assert refused.error["code"] == "bad_request"
    assert "terminals" in refused.error["message"]
    assert (place.data / "bus").exists()


def test_create_refuses_what_it_would_overwrite_and_what_is_not_there(place: Place) -> None:
    file = place.folder / "a.backup"
    file.write_text("mine")
    assert place.call("backup", "create", str(file), "--json").error["code"] == "bad_request"
    with place.up("--http-port", "0"):
        refused = place.call("backup", "create", str(file), "--json")
        assert refused.error["code"] == "bad_request"
    assert file.read_text() == "mine"
    assert place.call("backup", "verify", str(file), "--json").error["code"] == "bad_backup"
    assert place.call("backup", "verify", str(file) + "x", "--json").error["code"] == "bad_request"
