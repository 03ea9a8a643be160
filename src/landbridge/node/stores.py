"""Which store a process has: in the data folder, in memory, or on a server.

What is on a server is also noted in the data folder, which keeps the keys and the identity: so a terminal is
not started on an old or empty store by mistake.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from landbridge.core.cluster.roster import Roster
from landbridge.core.log.store import Store
from landbridge.core.store_address import POSTGRES, REDIS, StoreAddress, is_address, parse_address
from landbridge.errors import BadRequest
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.stores.remote import RemoteStore

#: The environment variable with the store's URL.
VARIABLE = "LANDBRIDGE_STORE"
#: The terminal's embedded store and the registry's, beside each other in a data folder.
BUS, REGISTRY = "bus", "registry"
#: Kind and key of the document in a store that is a copy and not complete yet.
COPYING = "copying"
#: The file in a data folder that says on which server its stores are.
NOTE = "store.url"
#: Seconds that a process which ends waits for a server that is away.
LEAVE_WITHIN = 5.0
IN_A_FILE = f"put the URL into {VARIABLE}, or into a file that only its owner can read: --store @FILE"


def address_of(given: str | None, *, is_visible: bool = True) -> StoreAddress | None:
    """The address in a setting or the environment; None for a store in the data folder. ``is_visible``: the
    setting is an argument of the process, which everybody on the machine can read. BadRequest."""
    text = given or os.environ.get(VARIABLE)
    if not text:
        return None
    if text.startswith("@"):
        return parse_address(_content(Path(text[1:]).expanduser()))
    if not is_address(text):
        raise BadRequest(
            "the store has to be journal, memory, or a URL", hint="redis://, rediss:// or postgresql://"
        )
    address = parse_address(text)
    if given and is_visible and address.has_secret:
        raise BadRequest(
            "the store's URL has a password in it, and the arguments of a process can be read by "
            "everybody on "
            "its machine",
            hint=IN_A_FILE,
        )
    return address


def _content(file: Path) -> str:
    try:
        if file.stat().st_mode & 0o077:
            raise BadRequest(f"others than its owner can read {file}", hint=f"chmod 600 {file}")
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read {file}: {getattr(error, 'strerror', None) or error}") from None


def store_at(address: StoreAddress, *, is_shared: bool = False) -> RemoteStore:
    """The store of a server, not open yet. ``is_shared``: by several nodes of one terminal."""
    if address.scheme in REDIS:
        from landbridge.stores.redis.store import RedisStore

        return RedisStore(address, is_shared=is_shared)
    assert address.scheme in POSTGRES
    try:
        from landbridge.stores.postgres.store import PostgresStore
    except ImportError as missing:
        raise BadRequest(
            f"a store in PostgreSQL needs psycopg: {missing}", hint="pip install 'landbridge[postgres]'"
        ) from None
    return PostgresStore(address, is_shared=is_shared)


def roster_at(address: StoreAddress, units: int) -> Roster:
    """The table of nodes beside the store of a server, which is there already."""
    if address.scheme in REDIS:
        from landbridge.stores.redis.roster import RedisRoster

        return RedisRoster(address, units)
    from landbridge.stores.postgres.roster import PostgresRoster

    return PostgresRoster(address, units)


def registry_address(address: StoreAddress) -> StoreAddress:
    """Where the registry's store is that goes with a terminal's: it is one unit, on the same server."""
    return address.beside(REGISTRY, units=1)


async def bus_store(
    data: Path | None, address: StoreAddress | None, tell: Callable[[int, int], None] | None = None
) -> Store:
    """The store of a terminal, not open yet. Of a store on a server it is known by then how many units it
    has."""
    if address is None:
        if data is None:
            return MemoryStore()
        check_embedded(data)
        return JournalStore(data / BUS, tell=tell)
    assert data is not None
    store = await remote_store(data, BUS, address)
    note(data, address)
    return store


async def shared_store(data: Path, address: StoreAddress) -> RemoteStore:
    """The store of a terminal that has several nodes. It is made here if there is none, and not open yet."""
    store = await remote_store(data, BUS, address, is_shared=True)
    if not store.exists:
        await store.open()
        await store.close()
    note(data, address)
    return store


async def remote_store(
    data: Path, name: str, address: StoreAddress, *, is_shared: bool = False
) -> RemoteStore:
    """A store on a server for a data folder, not open yet. BadRequest where the folder's data is elsewhere,
    or the store is a copy that is not complete."""
    store = store_at(address, is_shared=is_shared)
    await store.find()
    try:
        check_folder(data, name, address, is_new=not store.exists)
        if store.exists:
            await store.open()
            if not await is_whole(store):
                raise BadRequest(
                    f"the store {address} is a copy that is not complete",
                    hint="repeat the 'landbridge store copy' that was interrupted: it goes on where it was",
                )
    finally:
        await store.close()
    return store


async def is_whole(store: Store) -> bool:
    """Is an open store no copy that was interrupted?"""
    return not await store.documents(0, COPYING)


def noted(data: Path) -> str:
    """The address that a data folder names; empty where its stores are in the folder itself."""
    try:
        return (data / NOTE).read_text().strip()
    except OSError:
        return ""


def note(data: Path, address: StoreAddress | None) -> None:
    """Write down where the stores of a data folder are: at the address, or in the folder."""
    file = data / NOTE
    if address is None:
        file.unlink(missing_ok=True)
    elif noted(data) != str(address):
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_name(f"{NOTE}.new")
        fresh.write_text(f"{address}\n")
        fresh.replace(file)


def check_embedded(data: Path) -> None:
    """BadRequest where a data folder's stores are on a server."""
    elsewhere = noted(data)
    if elsewhere:
        raise BadRequest(
            f"the data of {data} is in {elsewhere}, and no store was given",
            hint=f"start it with --store {quote(elsewhere)}, or bring the data back "
            f"into a new folder: landbridge store copy {quote(elsewhere)} FOLDER && "
            f"cp {data}/master.key {data}/terminal.yml FOLDER",
        )


def check_folder(data: Path, name: str, address: StoreAddress, *, is_new: bool) -> None:
    """BadRequest where a data folder has its data elsewhere, and the store on the server would be new."""
    elsewhere = noted(data)
    if is_new and name == BUS and elsewhere not in ("", str(address)):
        raise BadRequest(
            f"the data of {data} is in {elsewhere}, and {address} has none",
            hint=f"start it with --store {quote(elsewhere)}, or take the data along: landbridge store copy "
            f"{quote(elsewhere)} {quote(str(address))}; or give another --data FOLDER",
        )
    if is_new and not noted(data) and (data / name).exists():
        raise BadRequest(
            f"{data} has a store with data, and {address} has none",
            hint=f"take the data along: landbridge store copy {data} {quote(str(address))}; or give "
            f"another --data "
            f"FOLDER",
        )


def condition(store: Store, troubles: list[str]) -> tuple[bool, list[str]]:
    """Whether a terminal can take messages, and what an operator should look at."""
    if isinstance(store, RemoteStore) and store.trouble:
        return False, [f"the store doesn't answer: {store.trouble}", *troubles]
    return not store.is_low, troubles


def leave(store: Store) -> None:
    """The process ends: nothing waits long for a server that is away."""
    if isinstance(store, RemoteStore):
        store.leave_within(LEAVE_WITHIN)
