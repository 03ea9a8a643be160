"""``landbridge store``: the stores of a data folder, checked and repaired while no process uses them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landbridge.cli import output, units
from landbridge.cli.backup import DataFolder
from landbridge.cli.options import Commands
from landbridge.core.text import printable
from landbridge.core.wording import counted
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from landbridge.node.upkeep import StoreCondition

app = Commands(
    no_args_is_help=True,
    help="The stores of a data folder: look for damage, and repair it. The terminal has to be stopped.",
)

#: Exit status where something is damaged.
FAILED = 70


@app.command()
def check(data: DataFolder = None) -> None:
    """Read everything that is stored and compare its checksums. Status 70 if something is damaged.

    Examples:
      landbridge store check
      landbridge store check --data ./bus
    """
    from landbridge.node import upkeep

    folder = _folder(data)
    with output.progress("checking") as tell:
        found = upkeep.check_stores(folder, tell)
    _report(found, f"landbridge store repair --data {folder}")


@app.command()
def repair(data: DataFolder = None) -> None:
    """Make the indexes anew from the segments, and say what is lost. Status 70 if something is.

    Messages are only in the segments, which are not changed. What is lost stays lost: move groups past it.

    Examples:
      landbridge store repair
      landbridge store repair --data ./bus
    """
    from landbridge.node import upkeep

    with output.progress("repairing") as tell:
        done = upkeep.repair_stores(_folder(data), tell)
    _report(done, "landbridge group seek TOPIC GROUP --to OFFSET, or restore a backup")


def _report(found: list[StoreCondition], way_out: str) -> None:
    is_well = not any(each.findings for each in found)
    output.emit({"ok": is_well, "stores": found}, lambda _: _show(found, "" if is_well else way_out))
    if not is_well:
        raise typer.Exit(FAILED)


def _show(found: list[StoreCondition], way_out: str) -> None:
    for each in found:
        state = counted(len(each.findings), "finding") if each.findings else "all is well"
        line = f"{each.store}  {units.size(each.bytes)} in {each.path}: {state}"
        if each.findings:
            print(line)
        else:
            output.done(line)
        for text in (*each.repaired, *each.findings):
            print(f"  {printable(text)}")
    if way_out:
        print(f"next  {way_out}")


def _folder(data: Path | None) -> Path:
    return (data or data_folder()).absolute()
