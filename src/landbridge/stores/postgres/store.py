"""The driver for PostgreSQL: one function of ``functions.sql`` for each thing that the port asks for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
from isal.isal_zlib import crc32

from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.core.store_address import StoreAddress
from landbridge.errors import BadRequest, StoreCorrupt
from landbridge.stores.postgres.connection import PostgresConnection
from landbridge.stores.remote import (
    FORMAT,
    LARGEST,
    CommitAnswer,
    RemoteStore,
    ServerRoom,
    StoredEntry,
    in_use,
    may_be_ledger_only,
    too_new,
)

T = TypeVar("T")
#: Connections that commit; a unit always uses the same one. A connection is a process of the server.
LINES = 8
#: Connections that read.
READERS = 3
#: A write as a row: op, log, first, until, time, one, two, kind, key, data.
Row = tuple[
    str,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    bytes | None,
    bytes | None,
    Any,
]
COLUMNS = 10


class PostgresStore(RemoteStore):
    """A store in PostgreSQL."""

    def __init__(self, address: StoreAddress, *, is_shared: bool = False) -> None:
        super().__init__(address, PostgresEngine(address, is_shared=is_shared))


class PostgresEngine:
    def __init__(self, address: StoreAddress, *, is_shared: bool = False) -> None:
        self._address = address
        self._is_shared = is_shared
        #: Quoted: a name may be a word of SQL, such as "user".
        self._schema = f'"{address.name}"'
        self._units = 0
        self._lines: dict[int, PostgresConnection] = {}
        self._readers: dict[int, PostgresConnection] = {}
        self._next_reader = 0
        #: The connection whose advisory lock says that this process has the store.
        self._holding: PostgresConnection | None = None
        self._making = asyncio.Lock()

    def _sql(self, text: str) -> str:
        return text.replace("SCHEMA.", f"{self._schema}.")

    # -- connections -------------------------------------------------------------------------------

    async def _connection(self, among: dict[int, PostgresConnection], place: int) -> PostgresConnection:
        known = among.get(place)
        if known is not None and known.is_open:
            return known
        async with self._making:
            known = among.get(place)
            if known is None or not known.is_open:
                among[place] = known = await PostgresConnection.to(self._address)
            return known

    async def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        self._next_reader = (self._next_reader + 1) % READERS
        reader = await self._connection(self._readers, self._next_reader)
        return await reader.ask(self._sql(statement), values)

    async def _write(self, unit: int, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        line = await self._connection(self._lines, unit % LINES)
        return await line.ask(self._sql(statement), values)

    # -- life --------------------------------------------------------------------------------------

    async def prepare(self, units: int | None) -> int | None:
        if not (await self._read("SELECT to_regclass(%b) IS NOT NULL", f"{self._schema}.store"))[0][0]:
            return None
        rows = await self._read("SELECT format, units FROM SCHEMA.store")
        if not rows:
            return None
        if rows[0][0] != FORMAT:
            raise too_new(self._address, rows[0][0])
        self._units = rows[0][1]
        return self._units

    async def make(self, units: int) -> int:
        code = files(__package__).joinpath("functions.sql").read_text()
        digest = hashlib.sha256(code.encode()).hexdigest()
        line = await self._connection(self._lines, 0)
        lock = self._lock(" making")
        await line.ask("SELECT pg_advisory_lock(%b)", [lock])  # several nodes may start at once
        try:
            await self._make(line, units, code, digest)
        finally:
            if line.is_open:
                await line.ask("SELECT pg_advisory_unlock(%b)", [lock])
        found = await self.prepare(units)
        assert found is not None
        return found

    async def _make(self, line: PostgresConnection, units: int, code: str, digest: str) -> None:
        there = await self.prepare(units)
        known = await line.ask(self._sql("SELECT functions FROM SCHEMA.store")) if there is not None else []
        if not known or known[0][0] != digest:
            row = (
                f"INSERT INTO SCHEMA.store (format, units, functions) VALUES ({FORMAT}, {units}, '{digest}') "
                "ON CONFLICT (one) DO UPDATE SET functions = excluded.functions"
            )
            # Whoever may not make schemas may have been given one.
            is_there = (await line.ask("SELECT to_regnamespace(%b) IS NOT NULL", [self._schema]))[0][0]
            schema = "" if is_there else f"CREATE SCHEMA {self._schema}; "
            await line.ask(self._sql(f"{schema}{code}; {row}"))

    async def hold(self) -> None:
        """An advisory lock of a session: it ends with the process. Nodes of one terminal share it, and keep
        out only who wants the store for itself."""
        if self._holding is not None and self._holding.is_open:
            await self._holding.ask("SELECT 1")
            return
        holding = await PostgresConnection.to(self._address)
        function = "pg_try_advisory_lock_shared" if self._is_shared else "pg_try_advisory_lock"
        ((is_mine,),) = await holding.ask(f"SELECT {function}(%b)", [self._lock("")])
        if not is_mine:
            await holding.close()
            raise in_use(self._address, "another process")
        self._holding = holding

    def _lock(self, of: str) -> int:
        """The number of an advisory lock of this store."""
        digest = hashlib.sha256(f"landbridge{of} {self._address.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    async def close(self) -> None:
        holding = [] if self._holding is None else [self._holding]
        self._holding = None
        for connection in (*self._lines.values(), *self._readers.values(), *holding):
            await connection.close()
        self._lines.clear()
        self._readers.clear()

    # -- changing ----------------------------------------------------------------------------------

    async def claim(self, unit: int, claimant: bytes) -> int:
        rows = await self._write(unit, "SELECT SCHEMA.claim(%b::integer, %b::bytea)", unit, claimant)
        return int(rows[0][0])

    async def commit(self, unit: int, epoch: int, number: int, writes: Sequence[Write]) -> CommitAnswer:
        rows = [_row(write, self._units) for write in writes]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * COLUMNS
        statement = (
            "SELECT word, a, b FROM SCHEMA.commit(%b::integer, %b::bigint, %b::bigint, %b::text[], "
            "%b::bigint[], "
            "%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], "
            "%b::bytea[], %b::bytea[])"
        )
        try:
            ((word, first, second),) = await self._write(unit, statement, unit, epoch, number, *columns)
        except psycopg.Error as refused:
            index, *numbers = (refused.diag.message_detail or "").split(" ")
            if refused.sqlstate == "LB001":
                return CommitAnswer("gap", int(numbers[0]), int(numbers[1]), int(index))
            end, has_choice = numbers
            return CommitAnswer(
                "source", int(end) if end else None, 0, int(index), has_choice=has_choice == "1"
            )
        return CommitAnswer(word, first, second)

    # -- reading -----------------------------------------------------------------------------------

    async def logs(self, unit: int, only: Sequence[int] | None = None) -> dict[int, LogBounds]:
        statement = "SELECT log, first, until, bytes, time, forgotten FROM SCHEMA.log WHERE unit = %b"
        rows = (
            await self._read(statement, unit)
            if only is None
            else await self._read(f"{statement} AND log = ANY(%b)", unit, list(only))
        )
        return {log: LogBounds(*bounds) for log, *bounds in rows}

    async def read(self, unit: int, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        rows = await self._read(
            "SELECT first, until, time, size, crc, data, choice "
            "FROM SCHEMA.read(%b::bigint, %b::bigint, %b::bigint)",
            log, offset, min(max_bytes, LARGEST),
        )  # fmt: skip
        found: list[StoredBatch] = []
        for first, until, time, size, crc, data, choice in rows:
            if data is None or len(data) != size or crc32(data) != crc:
                if found:
                    break
                raise StoreCorrupt(f"log {log}: the batch at offset {first} is damaged or missing")
            found.append(StoredBatch(first, until, time, data, choice))
        return found

    async def seek_time(self, unit: int, log: int, time: int) -> int:
        rows = await self._read("SELECT SCHEMA.seek(%b::bigint, %b::bigint)", log, time)
        return int(rows[0][0])

    async def ledger(self, unit: int, log: int, producer: bytes) -> bytes | None:
        rows = await self._read(
            "SELECT entry FROM SCHEMA.ledger WHERE log = %b AND producer = %b", log, producer
        )
        return rows[0][0] if rows else None

    async def documents(self, unit: int, kind: str, prefix: str) -> list[tuple[str, bytes]]:
        begin = prefix.encode()
        rows = await self._read(
            "SELECT key, value FROM SCHEMA.document WHERE unit = %b AND kind = %b AND key >= %b AND key < "
            "%b ORDER BY key",
            unit, kind.encode(), begin, begin + b"\xff",
        )  # fmt: skip
        return [(key.decode(), value) for key, value in rows]

    async def look(self) -> ServerRoom:
        await self._read("SELECT 1")
        return ServerRoom(False, None)  # PostgreSQL doesn't tell how much of its disk is free

    async def check(self, unit: int) -> list[str]:
        """That every stored batch has entries, and as many as are counted."""
        if unit:
            return []  # batches know no unit: the first one looks at all of them
        rows = await self._read(
            "SELECT b.id, b.holders, count(e.batch) FROM SCHEMA.batch b LEFT JOIN SCHEMA.entry e ON "
            "e.batch = b.id "
            "GROUP BY b.id, b.holders HAVING count(e.batch) <> b.holders"
        )
        return [
            f"stored batch {id} has {entries} entries, and {holders} are counted"
            for id, holders, entries in rows
        ]

    # -- for a copy of the store -------------------------------------------------------------------

    async def kinds(self, unit: int) -> list[str]:
        rows = await self._read(
            "SELECT DISTINCT kind FROM SCHEMA.document WHERE unit = %b ORDER BY kind", unit
        )
        return [kind.decode() for (kind,) in rows]

    async def ledger_logs(self, unit: int) -> list[int]:
        statement = (
            "SELECT DISTINCT log FROM SCHEMA.ledger WHERE mod(mod(log, %b) + %b, %b) = %b ORDER BY log"
        )
        return [log for (log,) in await self._read(statement, self._units, self._units, self._units, unit)]

    async def ledgers(self, unit: int, log: int) -> list[StoredEntry]:
        rows = await self._read(
            "SELECT producer, entry, last, born FROM SCHEMA.ledger WHERE log = %b ORDER BY producer", log
        )
        return [StoredEntry(*row) for row in rows]


def _row(write: Write, units: int) -> Row:
    match write:
        case Append(log, first, end, time, data):
            data = data if isinstance(data, bytes) else bytes(data)
            return "A", log, first, end, time, crc32(data), None, None, None, data
        case Copy(log, first, end, time, from_log, from_first, choice):
            return "C", log, first, end, time, from_log, from_first, None, None, choice
        case Trim(log, before):
            flag = int(may_be_ledger_only(log, units))
            return "T", log, min(before, LARGEST), None, None, flag, None, None, None, None
        case DropLog(log):
            return "D", log, None, None, None, None, None, None, None, None
        case PutDocument(kind, key, value):
            return "P", None, None, None, None, None, None, kind.encode(), key.encode(), value
        case DeleteDocument(kind, key):
            return "X", None, None, None, None, None, None, kind.encode(), key.encode(), None
        case PutLedger(log, producer, None):
            return "F", log, None, None, None, None, None, None, producer, None
        case PutLedger(log, producer, bytes() as entry, last, born):
            return "L", log, None, None, None, last, born, None, producer, entry
    raise BadRequest(f"a store can't write {write!r}")
