"""What needs an extra that is not installed says so, with the command that installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.ports import free_port

HIDDEN = ("aiosmtplib", "aiosmtpd", "socketio", "psycopg", "jsonschema_rs")


@pytest.fixture
def bare(tmp_path: Path) -> Place:
    """A place whose processes find none of the packages of the extras."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    # A module that is None in sys.modules can't be imported, and is not found.
    hide = f"import sys\nsys.modules.update(dict.fromkeys({HIDDEN!r}))\n"
    (folder / "sitecustomize.py").write_text(hide)
    place = Place(tmp_path / "place")
    place.settings["PYTHONPATH"] = str(folder)
    return place


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        (("--smtp", "0", "--smtp-domain", "bus.example", "--http-port", "0"), "mail"),
        (("--socketio", "--http-port", str(free_port())), "socketio"),
        (("--store", "postgresql://nowhere.example/bus"), "postgres"),
    ],
)
def test_a_door_is_not_opened_without_its_extra(bare: Place, options: tuple[str, ...], extra: str) -> None:
    failed = bare.run("up", "--port", "0", *options)
    assert failed.status
    assert f"pip install 'landbridge[{extra}]'" in failed.err


def test_mail_outlets_without_their_extra_are_in_trouble(bare: Place) -> None:
    mend, words = "pip install 'landbridge[mail]'", "aiosmtplib is not installed"
    address = (
        "--server",
        "smtps://mail.example",
        "--from-address",
        "bus@example.com",
        "--to",
        "a@example.com",
    )
    path = bare.settings.pop("PYTHONPATH")
    with bare.up("--http-port", "0"):
        assert bare.call("mail", "create", "alerts", "ops", *address).status == 0
        assert bare.call("mail", "list", "--json").json[0]["trouble"] == ""
    bare.settings["PYTHONPATH"] = path
    with bare.up("--http-port", "0"):
        [row] = bare.call("mail", "list", "--json").json
        assert words in row["trouble"]
        assert mend in row["trouble"]
        assert words in bare.call("mail", "show", "alerts", "ops").out
        assert words in bare.call("doctor").out
        for refused in (
            bare.call("mail", "create", "alerts", "other", *address),
            bare.call("mail", "test", "alerts", "ops"),
        ):
            assert refused.status
            assert mend in refused.err
        refused = bare.call("topic", "create", "checked", "--middleware", "validate")
        assert "pip install 'landbridge[middleware]'" in refused.err
