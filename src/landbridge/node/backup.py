"""Backups of a data folder: made while its processes run, checked, and restored.

A backup is one file, for its owner alone: a tar archive of the members below in an envelope
(``node/envelope.py``). The last member is the manifest. Each store is copied as it is at one moment; the
terminal's comes first, so that the registry's copy knows all that the terminal's refers to.

A restored store begins a new life. It gets another incarnation, and numbers that others may have seen after
the backup was made are skipped.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

import msgspec
from msgspec.structs import replace

import landbridge
from landbridge.broker.clock import Clock
from landbridge.broker.commit import SETTINGS, START
from landbridge.broker.unit_life import INCARNATION, new_incarnation
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.core.log.store import PutDocument, Write
from landbridge.core.time import SECOND
from landbridge.errors import BadBackup, BadContext, BadRequest, StoreFull
from landbridge.node import assembly, embedded, envelope, master_key, member, terminal_file
from landbridge.node.membership import find_context
from landbridge.node.stores import NOTE, noted
from landbridge.registry import codec
from landbridge.registry.entities import CustomerRecord
from landbridge.stores.journal.disk import NO_ROOM
from landbridge.stores.journal.segments import segment_files
from landbridge.stores.journal.store import JournalFolder, reading

FORMAT = 2
STORES = (assembly.DATABASE, embedded.DATABASE)
CERTIFICATES = ("tls/link.pem", "tls/ca.pem")
#: Small files of a data folder, as far as it has them: keys, identity, certificates.
FILES = (master_key.FILE, embedded.FILE, member.REGISTRY_KEY, *CERTIFICATES)
CONTEXT, MANIFEST = "context.json", "manifest.json"
#: Files that a backup may have, beside those of its stores.
MEMBERS = (*FILES, CONTEXT, MANIFEST)
#: A file of a store.
SEGMENT = re.compile(rf"({'|'.join(STORES)})/\d{{8,20}}\.segment")
#: The stores in a backup of version 0.1, which are taken over when they are opened.
OLD_STORES = tuple(f"{store}.db" for store in STORES)
#: What may stand beside the members in a data folder that is moved aside.
BESIDE = (
    *STORES,
    NOTE,
    *(f"{store}{end}" for store in OLD_STORES for end in ("", "-wal", "-shm", ".lock", ".new", ".probe")),
)
#: Bytes of the largest member that is no store.
MOST_SMALL = 1 << 20
#: Starts that a restored terminal skips in its count. Those that came after the backup have given out leases
#: under their numbers, which must not be taken for leases of other messages.
STARTS_AHEAD = 1_000
#: Versions of each directory that a restored registry skips, so that terminals with a later version
#: than the backup's take the next one.
VERSIONS_AHEAD = 1_000_000

#: Told of (bytes done, bytes in all).
Tell: TypeAlias = Callable[[int, int], None]


class BackupMember(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself."""

    format: int
    #: Of Landbridge.
    version: str
    made_at: int
    #: The data folder that it was made of.
    folder: str
    #: Of the terminal in its registry; empty where they aren't known.
    customer_id: str = ""
    terminal_id: str = ""
    #: Of the terminal's store; empty for a registry alone.
    incarnation: str = ""
    #: The name of the context that leads there; empty where this machine had none.
    context: str = ""
    members: list[BackupMember] = []

    @property
    def lacks_master_key(self) -> bool:
        names = {each.name for each in self.members}
        return self.has(embedded.DATABASE) and master_key.FILE not in names

    def has(self, store: str) -> bool:
        return any(each.name.startswith((f"{store}/", f"{store}.db")) for each in self.members)


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore has done."""

    folder: str
    made_at: int
    #: The new one, and the one that the backup has.
    incarnation: str
    was_incarnation: str
    #: Where the folder that was there before is now.
    moved_to: str | None
    #: The context that leads there; None where none was saved, because the name is another's.
    context: str | None
    #: The name of the context in the backup.
    wanted_context: str
    #: The command that starts it.
    next: str
    #: The registry's master key is not in the backup.
    lacks_master_key: bool


# -- create --------------------------------------------------------------------------------------------


def create(folder: Path, file: Path, passphrase: str | None, tell: Tell) -> BackupManifest:
    """Copy a data folder into a new file, also while its processes run. Needs room for a second copy of the
    stores until it ends."""
    stores = [name for name in STORES if (folder / name).exists()]
    elsewhere = noted(folder)
    if elsewhere:
        raise BadRequest(
            f"the data of {folder} is in {elsewhere}",
            hint="make backups by the means of that server, and keep master.key and terminal.yml with them",
        )
    if not stores:
        hint = "name the data folder with --data"
        if any((folder / name).exists() for name in OLD_STORES):
            hint = "its data is of version 0.1: start it once, so that it is taken over"
        raise BadRequest(f"there is no store in {folder}", hint=hint)
    if file.exists():
        raise BadRequest(f"there is a file {file} already", hint="a backup never replaces one: choose a name")
    whole = sum(_size(folder / name) for name in stores)
    work = _BytesDone(2 * whole, tell)
    with _failures(file), tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as made:
        staged = Path(made)
        for name in stores:
            (staged / name).mkdir(mode=0o700)
            JournalFolder(folder / name).copy_to(staged / name, work.part(_size(folder / name)))
        new = staged / "backup"
        with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            wrapped = envelope.wrap(out, passphrase)
            with tarfile.open(fileobj=wrapped, mode="w|", bufsize=envelope.PIECE) as archive:  # type: ignore[call-overload]
                manifest = _fill(archive, folder, staged, stores, work)
            wrapped.close()
            out.flush()
            os.fsync(out.fileno())
        new.rename(file)
        _sync(file.parent)
    return manifest


def _fill(
    archive: tarfile.TarFile, folder: Path, staged: Path, stores: list[str], work: _BytesDone
) -> BackupManifest:
    members = []
    incarnation = ""
    if assembly.DATABASE in stores:
        with reading(staged / assembly.DATABASE) as store:
            incarnation = dict(store.documents(SETTINGS)).get(INCARNATION, b"").decode()
    for name in stores:
        for path in segment_files(staged / name):
            with path.open("rb") as file:
                members.append(_add(archive, f"{name}/{path.name}", file, path.stat().st_size, work.more))
            path.unlink()
    for name in FILES:
        with suppress(FileNotFoundError):
            members.append(_add_small(archive, name, (folder / name).read_bytes()))
    context = _context_of(folder)
    if context:
        members.append(_add_small(archive, CONTEXT, msgspec.json.encode(contexts.load(context))))
    customer, terminal = _ids(folder)
    manifest = BackupManifest(
        format=FORMAT,
        version=landbridge.__version__,
        made_at=Clock()(),
        folder=str(folder),
        customer_id=customer,
        terminal_id=terminal,
        incarnation=incarnation,
        context=context,
        members=members,
    )
    _add_small(archive, MANIFEST, msgspec.json.encode(manifest))
    return manifest


def _add_small(archive: tarfile.TarFile, name: str, data: bytes) -> BackupMember:
    return _add(archive, name, io.BytesIO(data), len(data), lambda size: None)


def _add(
    archive: tarfile.TarFile, name: str, file: IO[bytes], size: int, tell: Callable[[int], None]
) -> BackupMember:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, Clock()() // SECOND
    hashed = _Hashed(file, tell)
    archive.addfile(info, hashed)
    return BackupMember(name, size, hashed.hash.hexdigest())


def _context_of(folder: Path) -> str:
    """The name of the context that leads to the terminal or the registry of a data folder."""
    for name in contexts.names():
        found = find_context(name)
        if found is not None and found.data == str(folder):
            return name
    return ""


def _ids(folder: Path) -> tuple[str, str]:
    """The ids of customer and terminal: from its file, or else from its certificate."""
    if (folder / embedded.FILE).exists():
        known = terminal_file.read(folder / embedded.FILE, {}, {})
        return known.get("customer_id", ""), known.get("terminal_id", "")
    from cryptography import x509

    with suppress(OSError, ValueError, x509.ExtensionNotFound):
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATES[0]).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
            customer, _, terminal = uri.removeprefix("landbridge://").partition("/")
            return customer, terminal
    return "", ""


# -- verify --------------------------------------------------------------------------------------------


def verify(file: Path, passphrase: str | None, tell: Tell) -> BackupManifest:
    """Check every digest, and read the stores for damage, in a copy that is removed afterwards."""
    beside = file.parent if os.access(file.parent, os.W_OK) else None
    with _failures(file), tempfile.TemporaryDirectory(dir=beside, prefix=".backup-") as made:
        return _unpack(file, Path(made), passphrase, tell)


def is_sealed(file: Path) -> bool:
    with _failures(file), file.open("rb") as stream:
        return envelope.is_sealed(stream)


def _unpack(file: Path, into: Path, passphrase: str | None, tell: Tell) -> BackupManifest:
    """Take the members out of a backup, for their owner alone, and check them. BadBackup."""
    work = _BytesDone(file.stat().st_size, tell)
    digests: dict[str, tuple[int, str]] = {}
    with file.open("rb") as stream:
        content = envelope.unwrap(stream, passphrase)
        try:
            with tarfile.open(fileobj=content, mode="r|", bufsize=envelope.PIECE) as archive:  # type: ignore[call-overload]
                for info in archive:
                    _take(archive, info, into, digests, work)
        except (tarfile.TarError, EOFError) as error:
            _drain(content)  # says so where the file has changed
            raise BadBackup(f"{file} is no backup: {error}") from None
        _drain(content)
    manifest = _manifest(file, into)
    wanted = {each.name: (each.size, each.sha256) for each in manifest.members}
    digests.pop(MANIFEST)
    for name in sorted(wanted.keys() | digests.keys()):
        if wanted.get(name) != digests.get(name):
            raise BadBackup(f"{file}: {name} is not what the manifest says")
    for name in STORES:
        if (into / name).exists():
            with reading(into / name) as store:
                findings = store.findings + store.check()
            if findings:
                raise BadBackup(f"{file}: {name} is damaged: {findings[0]}")
    return manifest


def _take(
    archive: tarfile.TarFile,
    info: tarfile.TarInfo,
    into: Path,
    digests: dict[str, tuple[int, str]],
    work: _BytesDone,
) -> None:
    is_store = info.name in OLD_STORES or SEGMENT.fullmatch(info.name) is not None
    if not (is_store or info.name in MEMBERS) or not info.isreg() or info.name in digests:
        raise BadBackup(f"the archive has a member {info.name[:100]!r}, which no backup has")
    if not is_store and info.size > MOST_SMALL:
        raise BadBackup(f"the member {info.name} has {info.size} bytes")
    source = archive.extractfile(info)
    assert source is not None
    target = into / info.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    hashed = _Hashed(source, work.more)
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        shutil.copyfileobj(hashed, out, envelope.PIECE)
        out.flush()
        os.fsync(out.fileno())
    digests[info.name] = (info.size, hashed.hash.hexdigest())


def _drain(content: envelope.Content) -> None:
    while content.read(envelope.PIECE):
        pass


def _manifest(file: Path, into: Path) -> BackupManifest:
    try:
        manifest = msgspec.json.decode((into / MANIFEST).read_bytes(), type=BackupManifest)
    except FileNotFoundError:
        raise BadBackup(f"{file} is incomplete: it has no manifest") from None
    except msgspec.MsgspecError as error:
        raise BadBackup(f"{file}: its manifest can't be read: {error}") from None
    if manifest.format < 1 or not any(manifest.has(store) for store in STORES):
        raise BadBackup(f"{file} is incomplete: it holds no store")
    if manifest.format > FORMAT:
        raise BadBackup(
            f"{file} was made by Landbridge {manifest.version}",
            hint="restore it with that version or a newer",
        )
    return manifest


# -- restore -------------------------------------------------------------------------------------------


def restore(
    file: Path, folder: Path, passphrase: str | None, tell: Tell, *, replace_folder: bool, context: str | None
) -> Restored:
    """Put a backup into a data folder, entirely or not at all. ``replace_folder``: a folder that is not empty
    is moved aside. ``context``: save the context under this name."""
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _failures(folder), ExitStack() as stack:
        present = _present(folder)
        if present and not replace_folder:
            raise BadRequest(
                f"{folder} is not empty", hint="--replace moves it aside; --data names another folder"
            )
        foreign = sorted(present - {*MEMBERS, *BESIDE, "tls"})
        if foreign:
            raise BadRequest(
                f"{folder} holds more than a backup replaces: {', '.join(foreign)[:200]}",
                hint="restore into another folder with --data; or stop what uses these and move them away",
            )
        for name in STORES:
            if name in present:
                stack.enter_context(JournalFolder(folder / name).held())
        made = stack.enter_context(
            tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f".{folder.name}.restoring-", ignore_cleanup_errors=True
            )
        )
        staged = Path(made) / "data"
        staged.mkdir(mode=0o700)
        manifest = _unpack(file, staged, passphrase, tell)
        saved = _saved_context(staged, manifest, folder)
        incarnation = _begin_anew(staged)
        for name in (MANIFEST, CONTEXT):
            (staged / name).unlink(missing_ok=True)
        _sync(staged)
        moved_to = None
        if present:
            moved_to = _swap(staged, folder)
        else:
            _put(staged, folder)
    return Restored(
        folder=str(folder),
        made_at=manifest.made_at,
        incarnation=incarnation,
        was_incarnation=manifest.incarnation,
        moved_to=moved_to,
        context=_save_context(context or manifest.context, saved),
        wanted_context=manifest.context,
        next=_next(folder, context),
        lacks_master_key=manifest.lacks_master_key,
    )


def _present(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def _begin_anew(staged: Path) -> str:
    """Give the restored stores a new life. Returns the new incarnation of the terminal; empty without one."""
    incarnation = ""
    for name in STORES:
        if not ((staged / name).exists() or (staged / f"{name}.db").exists()):
            continue
        store = JournalFolder(staged / name)
        store.open()
        try:
            writes: list[Write] = []
            if name == assembly.DATABASE:
                incarnation = new_incarnation()
                writes = new_life(incarnation, store.documents(SETTINGS))
            store.commit([*writes, *later_versions(store.documents(CustomerRecord.kind))])
        finally:
            store.close()
    return incarnation


def new_life(incarnation: str, settings: Iterable[tuple[str, bytes]]) -> list[Write]:
    """What says in a terminal's store that it was restored."""
    start = int(dict(settings).get(START, b"0")) + STARTS_AHEAD
    return [
        PutDocument(SETTINGS, INCARNATION, incarnation.encode()),
        PutDocument(SETTINGS, START, str(start).encode()),
    ]


def later_versions(customers: Iterable[tuple[str, bytes]]) -> list[Write]:
    """What makes a registry's next directories later than any that it gave out before it was restored."""
    writes: list[Write] = []
    for key, data in customers:
        customer = codec.decode(CustomerRecord, key, data)
        later = codec.replace(customer, version=customer.version + VERSIONS_AHEAD)
        writes.append(PutDocument(CustomerRecord.kind, key, codec.encode(later)))
    return writes


def _put(staged: Path, folder: Path) -> None:
    """Put it where nothing is, or an empty folder: in one step."""
    try:
        staged.rename(folder)
    except OSError as error:
        raise BadRequest(
            f"{folder} can't be replaced by the restored folder: {error.strerror}",
            hint="if a disk is mounted there, restore into a folder on it: --data FOLDER",
        ) from None
    _sync(folder.parent)


def _swap(staged: Path, folder: Path) -> str:
    """Move the folder aside and put the restored one there. Returns where the old one is."""
    moment = Clock()() // SECOND
    aside = folder.with_name(f"{folder.name}.before-restore-{moment}")
    try:
        folder.rename(aside)
    except OSError as error:
        raise BadRequest(
            f"{folder} can't be moved aside: {error.strerror}",
            hint="restore into another folder: --data FOLDER",
        ) from None
    try:
        _put(staged, folder)
    except BadRequest:
        aside.rename(folder)
        raise
    return str(aside)


def _saved_context(staged: Path, manifest: BackupManifest, folder: Path) -> Context | None:
    """The context of the backup, as it is for the folder where the backup goes."""
    if not manifest.context:
        return None
    try:
        saved = msgspec.json.decode((staged / CONTEXT).read_bytes(), type=Context)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadBackup(f"the context in the backup can't be read: {error}") from None
    ca = saved.ca
    if ca is not None and Path(ca).is_relative_to(manifest.folder):
        ca = str(folder / Path(ca).relative_to(manifest.folder))
    return replace(saved, data=str(folder), ca=ca)


def _save_context(name: str, saved: Context | None) -> str | None:
    """Save the context, unless its name is another's. Returns its name."""
    if saved is None:
        return None
    found = find_context(name)
    if (found is not None and found.data != saved.data) or (found is None and name in contexts.names()):
        return None
    try:
        contexts.save(name, saved)
        if contexts.current() is None:
            contexts.use(name)
    except BadContext:
        return None
    return name


def _next(folder: Path, context: str | None) -> str:
    from landbridge.node.plan import data_folder

    suffix = f" --context {context}" if context else ""
    if not (folder / assembly.DATABASE).exists():
        return f"landbridge registry --data {folder}{suffix}"
    if (folder / member.REGISTRY_KEY).exists() or (folder / "tls").exists():
        return f"landbridge terminal --config FILE --data {folder} (FILE is the terminal's own, in no backup)"
    data = "" if folder == Path(os.path.realpath(data_folder())) else f" --data {folder}"
    return f"landbridge up{data}{suffix}"


def _size(store: Path) -> int:
    return sum(path.stat().st_size for path in segment_files(store))


# -- parts ---------------------------------------------------------------------------------------------


class _BytesDone:
    """Adds up what is done, and tells of it."""

    def __init__(self, whole: int, tell: Tell) -> None:
        self._whole, self._tell = whole, tell
        self._done = 0

    def more(self, size: int) -> None:
        self._done += size
        self._tell(self._done, self._whole)

    def part(self, size: int) -> Callable[[int, int], None]:
        """For a part of this size, told in units of its own."""
        before = self._done

        def tell(done: int, whole: int) -> None:
            self._done = before + size * done // max(1, whole)
            self._tell(self._done, self._whole)

        return tell


class _Hashed:
    """A file that is read, with the digest of what was read."""

    def __init__(self, file: IO[bytes], tell: Callable[[int], None]) -> None:
        self._file, self._tell = file, tell
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        self._tell(len(data))
        return data


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Errors of the file system as ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadRequest(f"there is no {error.filename or path}") from None
    except OSError as error:
        text = f"{error.filename or path}: {error.strerror or error}"
        raise StoreFull(text) if error.errno in NO_ROOM else BadRequest(text) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
