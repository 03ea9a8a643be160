"""``landbridge store``: the stores of a data folder, checked and repaired while no process uses them."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from landbridge.cli import output, units
from landbridge.cli.backup import DataFolder
from landbridge.cli.loop import run
from landbridge.cli.options import Commands, argument, option
from landbridge.core.text import printable
from landbridge.core.wording import counted
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from landbridge.node.plan import StoreAddress
    from landbridge.node.store_copy import CopiedStore
    from landbridge.node.upkeep import StoreCondition

app = Commands(
    no_args_is_help=True,
    help="Stores: look for damage, repair it, take the data elsewhere. The terminal has to be stopped.",
)

StoreUrl = Annotated[
    str | None,
    option(
        "A store on a server: redis://… or postgresql://…; @FILE reads the URL from a file.",
        "--store",
        metavar="URL|@FILE",
        show_default=False,
    ),
]
T = TypeVar("T")
#: Exit status where something is damaged.
FAILED = 70


@app.command()
def check(data: DataFolder = None, store: StoreUrl = None) -> None:
    """Read everything that is stored and compare its checksums. Status 70 if something is damaged.

    Examples:
      landbridge store check
      landbridge store check --data ./bus
      landbridge store check --store redis://db.lan:6379
    """
    from landbridge.node import upkeep

    if store is not None:
        from landbridge.node.remote_upkeep import check_remote

        _report(_awaited(check_remote(_address(store))), "restore a backup of the server")
        return
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


@app.command()
def restored(store: StoreUrl = None) -> None:
    """Say that a store on a server was restored from a backup of the server: a new life of it begins, so that
    others don't take what comes for what was. Before the terminal is started. For data folders, 'landbridge
    backup restore' does this.

    Examples:
      landbridge store restored --store postgresql://landbridge@db.lan/bus
    """
    from landbridge.node.remote_upkeep import begin_anew

    incarnation = _awaited(begin_anew(_address(store)))
    output.tell({"incarnation": incarnation}, f"a new life begins: incarnation {incarnation}")


def _awaited(work: Coroutine[Any, Any, T]) -> T:
    """The result of work with a server. Of its log, only warnings are shown."""
    from landbridge.node import logs

    with logs.warnings_alone():
        return run(work)


def _address(text: str | None) -> StoreAddress:
    from landbridge.node.stores import address_of

    address = address_of(text)
    if address is None:
        raise typer.BadParameter("--store URL says which store")
    return address


@app.command()
def copy(
    source: Annotated[
        str, argument("FROM", "A data folder, or a store on a server: its URL, or @FILE with the URL.")
    ],
    target: Annotated[str, argument("TO", "The same. There must be no data there yet.")],
) -> None:
    """Take a terminal's data and its registry's from one store to another, and compare them. The terminal has
    to be stopped. An interrupted copy goes on when it is repeated; nothing at FROM is changed.

    Examples:
      landbridge store copy ./bus postgresql://landbridge@db.lan/bus
      landbridge store copy redis://db.lan:6379 ./bus
    """
    from landbridge.node import store_copy

    places = [store_copy.place_of(text) for text in (source, target)]
    with output.progress("copying") as tell:
        copied = _awaited(store_copy.copy_stores(places[0], places[1], tell))
    output.emit(
        {"from": str(places[0]), "to": str(places[1]), "stores": copied}, lambda _: _show_copied(copied)
    )
    if places[1].address is not None:
        output.note(f"next: start the terminal with --store {places[1]}")


def _show_copied(copied: list[CopiedStore]) -> None:
    for each in copied:
        what = (
            f"{counted(each.messages, 'message')} in {counted(each.logs, 'log')}, "
            f"{units.size(each.bytes)}, {counted(each.documents, 'document')}"
        )
        output.done(f"{each.store}  {what}, the same at both ends (sha256 {each.digest[:16]})")


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
