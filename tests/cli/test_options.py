"""How commands declare their options, and tables their columns."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import typer
from typer.main import get_command

from landbridge.cli import output
from landbridge.cli.options import Commands, OptionGroup, argument, flag, option, size, span
from landbridge.cli.output import columns
from landbridge.cli.pipeline_options import interrupts_later
from tests.cli.conftest import Place


class Keeping(OptionGroup):
    max_age: float | None = span("Keep messages for so long.", default="7d")
    max_bytes: int | None = size("Keep so many bytes.")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(output, "choice", output._Choice())
    return []


def command(calls: list[tuple[Any, ...]]) -> Any:
    app = Commands()

    @app.command()
    def create(
        name: str | None = argument("NAME"),
        *,
        keeping: Keeping,
        many: int = option("How many.", min=1, value=3),
        force: bool = flag("Even so.", "--force"),
    ) -> None:
        """Create it."""
        calls.append((name, keeping, many, force))

    return get_command(app)


def test_a_group_is_its_fields_in_its_place(calls: list[tuple[Any, ...]]) -> None:
    names = [parameter.name for parameter in command(calls).params]
    assert names[:6] == ["name", "max_age", "max_bytes", "many", "force", "json"]
    command(calls).main(["orders", "--max-age", "2h", "--force"], standalone_mode=False)
    assert calls == [("orders", Keeping(max_age=7200.0, max_bytes=None), 3, True)]
    assert calls[0][1].given() == {"max_age": 7200.0}


def test_every_command_takes_json(calls: list[tuple[Any, ...]]) -> None:
    command(calls).main(["--json"], standalone_mode=False)
    assert calls == [(None, Keeping(max_age=None, max_bytes=None), 3, False)]
    assert output.choice.json


def test_a_value_that_is_none_is_refused_by_the_name_of_its_option(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        command(calls).main(["--max-bytes", "much"], standalone_mode=False)
    assert calls == []


def test_columns() -> None:
    name, size_, settled = columns("Topic=name@cyan | Size=bytes:size | Settled to:count@yellow")
    assert (name.title, name.key, name.style, name.show) == ("Topic", "name", "cyan", None)
    assert size_.text({"bytes": 1500}, pretty=True) == "1.5 kB"
    assert size_.text({"bytes": 1500}, pretty=False) == "1500"
    assert (settled.key, settled.style) == ("settled_to", "yellow")
    with pytest.raises(KeyError):
        columns("Size:weight")


@pytest.mark.parametrize("page", [(), ("mail",), ("mail", "create"), ("pipeline",), ("terminal",)])
def test_help_names_no_type_of_a_flag(place: Place, page: tuple[str, ...]) -> None:
    shown = place.call(*page, "--help").out
    assert "--help" in shown
    assert "<bool>" not in shown


def test_an_interrupt_while_spark_starts_counts_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_later():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("it has started")
    assert done
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), interrupts_later():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the second one is not waited with")
    assert len(done) == 1
    with interrupts_later():
        pass
    assert signal.getsignal(signal.SIGINT) is before
