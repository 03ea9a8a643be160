"""``landbridge up --store``: the data is on a server, the keys are in the folder, and nobody sees a
password."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cli.conftest import Place
from tests.ports import free_port
from tests.servers import Valkey, name_of, server_folder, shared_postgres, shared_valkey

SERVERS: dict[str, Callable[[], Any]] = {"redis": shared_valkey, "postgres": shared_postgres}


# The drivers are compared elsewhere; here it is the commands.
@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found: str = SERVERS[request.param]().url(name_of(tmp_path), units=4)
    return found


def read(place: Place, topic: str, count: int) -> list[str]:
    options = ["--from", "earliest", "--count", str(count), "--group", f"g{count}"]
    return place.call("subscribe", topic, *options).out.split()


def test_a_terminal_and_its_registry_keep_their_data_on_a_server(place: Place, url: str) -> None:
    port = str(free_port())
    with place.up("--http-port", port, "--store", url) as first:
        assert first.ready["store"] == url.replace("&units=4", "")
        assert place.call("publish", "orders", "one").status == 0
        terminals = place.call("terminal", "list", "--json").json
        busy = place.run("up", "--port", "0", "--http-port", "0", "--json", "--store", url)
        assert busy.error["code"] == "store_busy"
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    assert {path.name for path in place.data.iterdir()} == {"master.key", "store.url", "terminal.yml"}
    # The units are the store's; the URL need not have them.
    with place.up("--http-port", port, "--store", url.replace("&units=4", "")) as second:
        assert read(place, "orders", 1) == ["one"]
        again = place.call("terminal", "list", "--json").json
        assert [each["terminal_id"] for each in again] == [each["terminal_id"] for each in terminals]
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        checks = {each["check"]: each for each in place.call("doctor", "--json").json["checks"]}
        assert checks["store"]["state"] == "ok"
        assert "4 units" in checks["store"]["detail"]
        assert second.stop().status == 0
    checked = place.call("store", "check", "--store", url, "--json").json
    assert checked["ok"]
    assert [each["store"] for each in checked["stores"]] == ["bus", "registry"]
    refused = place.run("up", "--port", "0", "--http-port", "0", "--json")
    assert refused.error["code"] == "bad_request"
    assert "--store" in refused.error["hint"]


def test_data_moves_to_a_server_and_back_by_one_command_each(place: Place, url: str) -> None:
    with place.up("--http-port", "0") as running:
        for value in ("one", "two"):
            place.call("publish", "orders", value)
        in_use = place.call("store", "copy", str(place.data), url, "--json")
        assert in_use.error["code"] == "store_busy"
        running.stop()
    empty = place.run("up", "--port", "0", "--http-port", "0", "--json", "--store", url)
    assert "landbridge store copy" in empty.error["hint"]
    copied = place.call("store", "copy", str(place.data), url, "--json").json
    assert [each["store"] for each in copied["stores"]] == ["bus"]
    with place.up("--http-port", "0", "--store", url) as running:
        assert read(place, "orders", 2) == ["one", "two"]
        place.call("publish", "orders", "three")
        running.stop()
    was = place.call("store", "restored", "--store", url, "--json").json["incarnation"]
    taken = place.call("store", "copy", url, str(place.data), "--json")
    assert taken.error["code"] == "bad_request"
    shutil.rmtree(place.data / "bus")
    back = place.call("store", "copy", url, str(place.data))
    assert back.status == 0
    assert "the same at both ends" in back.out
    with place.up("--http-port", "0") as running:
        assert read(place, "orders", 3) == ["one", "two", "three"]
        assert place.call("info", "--json").json["incarnation"] == was
        running.stop()


def test_a_password_is_in_no_process_list_log_or_file(place: Place) -> None:
    with server_folder() as folder:
        server = Valkey(folder / "valkey").start()
        server.ask("CONFIG", "SET", "requirepass", "s3cr3t")
        url = f"redis://:s3cr3t@127.0.0.1:{server.port}"
        refused = place.run("up", "--store", url, "--port", "0", "--json")
        assert refused.error["code"] == "bad_request"
        assert "LANDBRIDGE_STORE" in refused.error["hint"]
        file = place.folder / "url"
        file.write_text(url)
        file.chmod(0o600)
        for given in ([], ["--store", f"@{file}"]):
            place.settings["LANDBRIDGE_STORE"] = "" if given else url
            with place.up("--http-port", "0", "--log-level", "debug", *given) as running:
                assert place.call("publish", "orders", "x").status == 0
                command = " ".join(psutil.Process(running.process.pid).cmdline())
                told = str(running.ready)
                ended = running.stop()
            noted = (place.data / "store.url").read_text()
            assert "s3cr3t" not in f"{command} {told} {ended.out} {ended.err} {noted} {refused.err}"
        server.kill()


def test_a_terminal_that_stops_while_its_server_is_away_ends_all_the_same(place: Place) -> None:
    with server_folder() as folder:
        server = Valkey(folder / "valkey").start()
        port = str(free_port())
        with place.up("--http-port", port, "--store", server.url("t", units=2)) as running:
            assert place.call("publish", "orders", "x").status == 0
            server.kill()
            publish = place.start("publish", "orders", "waits", "--json")
            found = 200
            while found == 200:
                found = httpx.get(f"http://127.0.0.1:{port}/readyz").status_code
            assert found == 503
            assert running.stop().status == 0
            publish.kill()
            publish.communicate()
