"""``landbridge backup``: a data folder in one file, made while its processes run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landbridge.cli import output, units
from landbridge.cli.options import Commands, argument, flag, option
from landbridge.errors import BadRequest
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from landbridge.node.backup import BackupManifest, Restored

app = Commands(
    no_args_is_help=True,
    help="Backups: a data folder with its keys in one file. Whoever can read the file has the keys.",
)

#: Where the passphrase is, for who has no file for it.
VARIABLE = "LANDBRIDGE_BACKUP_PASSPHRASE"

File = Annotated[Path, argument("FILE", "The backup.")]
DataFolder = Annotated[
    Path | None,
    option(
        "The data folder, of 'landbridge up', 'registry' or 'terminal'.",
        "--data",
        metavar="FOLDER",
        show_default="$LANDBRIDGE_DATA, else ~/.local/share/landbridge",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    option(
        f"The passphrase is this file's first line; '-' reads stdin. Or set {VARIABLE}.",
        "--passphrase-file",
        metavar="FILE",
        show_default=False,
    ),
]


@app.command()
def create(file: File, data: DataFolder = None, passphrase_file: PassphraseFile = None) -> None:
    """Copy a data folder into a new file that only you can read, also while its processes run.

    The file holds messages, keys and credentials. With a passphrase it is encrypted.

    Examples:
      landbridge backup create monday.backup
      landbridge backup create monday.backup --data ./bus --passphrase-file secret.txt
    """
    from landbridge.node import backup

    passphrase = _passphrase(passphrase_file)
    with output.progress("copying") as tell:
        made = backup.create(_folder(data), file.absolute(), passphrase, tell)
    size = file.stat().st_size
    result = output.fields(made, file=str(file), size=size, sealed=passphrase is not None)
    how = ", encrypted" if passphrase is not None else ""
    output.tell(result, f"{file} has {units.size(size)}{how}: {_names(made)}")
    _tell_of_master_key(made.lacks_master_key)
    output.note(f"next: landbridge backup verify {file}")


@app.command()
def verify(file: File, passphrase_file: PassphraseFile = None) -> None:
    """Check a backup: every digest, and every message in its stores. Nothing is changed.

    Examples:
      landbridge backup verify monday.backup
    """
    from landbridge.node import backup

    passphrase = _passphrase(passphrase_file, file)
    with output.progress("checking") as tell:
        found = backup.verify(file.absolute(), passphrase, tell)
    made = units.iso(found.made_at)
    output.tell(output.fields(found, ok=True), f"{file} of {made} is good: {_names(found)}")


@app.command()
def restore(
    file: File,
    data: DataFolder = None,
    replace: bool = flag("Move a folder that is not empty aside. It is never deleted.", "--replace"),
    context: str | None = option(
        "Save its context under this name.", metavar="NAME", default="the name that it had"
    ),
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put a backup into a data folder that no process uses, entirely or not at all.

    The restored store begins a new life: it has another incarnation, and other terminals can tell.

    Examples:
      landbridge backup restore monday.backup
      landbridge backup restore monday.backup --data ./bus --replace
    """
    from landbridge.node import backup

    passphrase = _passphrase(passphrase_file, file)
    with output.progress("restoring") as tell:
        done = backup.restore(
            file.absolute(), _folder(data), passphrase, tell, replace_folder=replace, context=context
        )
    output.emit(done, _show)
    _tell_of_master_key(done.lacks_master_key)


def _show(done: Restored) -> None:
    output.done(f"{done.folder} is as it was at {units.iso(done.made_at)}")
    if done.moved_to:
        print(f"before   {done.moved_to}")
    if done.context:
        print(f"context  {done.context}")
    elif done.wanted_context:
        print(f"context  none: {done.wanted_context} leads to another terminal; give --context NAME")
    print(f"next     {done.next}")


def _tell_of_master_key(lacking: bool) -> None:
    if lacking:
        output.notice("the registry's master key is not in the data folder, nor in the backup: keep it apart")


def _folder(data: Path | None) -> Path:
    return (data or data_folder()).absolute()


def _names(manifest: BackupManifest) -> str:
    return ", ".join(each.name for each in manifest.members)


def _passphrase(file: Path | None, backup: Path | None = None) -> str | None:
    """The passphrase; None for a backup without one. ``backup``: the one to open, if there is one: people are
    asked where it needs a passphrase that wasn't given."""
    if file is None:
        given = os.environ.get(VARIABLE)
        if given is None and backup is not None and sys.stdin.isatty() and not output.choice.json:
            from landbridge.node.backup import is_sealed

            if is_sealed(backup):
                given = str(typer.prompt("Passphrase", hide_input=True, err=True))
        if given is None:
            return None
    else:
        try:
            given = sys.stdin.readline() if str(file) == "-" else file.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"can't read {file}: {getattr(error, 'strerror', None) or error}") from None
    given = given.rstrip("\r\n")
    if not given:
        raise BadRequest("the passphrase is empty")
    return given
