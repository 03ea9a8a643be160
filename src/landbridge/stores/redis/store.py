"""The driver for Redis and Valkey: one function of ``functions.lua`` for each thing that the port asks
for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TypeVar

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
from landbridge.errors import BadRequest, StoreCorrupt, StoreFailed, StoreFull, TooLarge
from landbridge.stores.redis.resp import Argument, ConnectionLost, ErrorReply, RedisConnection, Reply
from landbridge.stores.redis.servers import LOGIN, Passing, RedisServer, RedisServers, passes
from landbridge.stores.remote import (
    FORMAT,
    LARGEST,
    Away,
    CommitAnswer,
    RemoteStore,
    ServerRoom,
    StoredEntry,
    in_use,
    may_be_ledger_only,
    too_new,
)

T = TypeVar("T")
#: Milliseconds that a server waits for its replicas before it says how many have the commit.
REPLICAS_WITHIN = 5_000
#: Of the memory that a server may have, the part that is left where it counts as full.
LITTLE = 0.02
#: Milliseconds without a sign of life after which the process that has the store is taken for gone.
SILENT = 10_000
#: Most arguments of one command: Redis takes 1,048,576.
MOST_ARGUMENTS = 1_000_000
#: Documents, entries or keys that are read at once.
AT_ONCE = 1000


class RedisStore(RemoteStore):
    """A store in Redis or Valkey."""

    def __init__(self, address: StoreAddress, *, is_shared: bool = False) -> None:
        super().__init__(address, RedisEngine(address, is_shared=is_shared))


class RedisEngine:
    def __init__(self, address: StoreAddress, *, is_shared: bool = False) -> None:
        self._address = address
        self._is_shared = is_shared
        self._servers = RedisServers(address)
        #: A unit's own connection, on which it commits: WAIT waits for what its connection has written.
        self._lines: dict[int, tuple[RedisServer, RedisConnection]] = {}
        #: A connection to each server for what only reads.
        self._readers: dict[RedisServer, RedisConnection] = {}
        #: The connection that says that this process has the store.
        self._holding: RedisConnection | None = None
        self._units = 0

    def _key(self, unit: int) -> str:
        return f"{{{self._address.name}:{unit}}}"

    @property
    def _record(self) -> str:
        """The key of the store's own record, beside unit 0."""
        return f"{self._key(0)}:store"

    # -- connections -------------------------------------------------------------------------------

    async def _passing(self, work: Awaitable[T]) -> T:
        """The failures that go by, as Away. What was known of the servers may be old then."""
        try:
            return await work
        except (ConnectionLost, Passing) as why:
            reason = str(why)
        except ErrorReply as error:
            reason = self._reason(error)
        try:
            await self._servers.refresh()
        except (ConnectionLost, Passing) as why:
            reason = str(why)
        raise Away(reason)

    def _reason(self, error: ErrorReply) -> str:
        """Why it is worth asking again. Raises what will not go by."""
        text = str(error)
        if "unction not found" in text:
            self._disconnect()  # a new connection loads the functions
            return text
        if passes(error) or "non local key" in text:  # the slot is on its way to another server
            return text
        if error.code == "OOM":
            raise StoreFull(
                "the server has no memory left for messages (maxmemory)",
                hint="delete or trim topics, or raise maxmemory: publishing then goes on by itself",
            )
        if error.code in ("NOAUTH", "NOPERM", "WRONGPASS"):
            raise StoreFailed(f"the server has refused the login or a command: {text}", hint=LOGIN)
        if "without AOF" in text or "appendonly" in text:
            # Somebody has switched the file off under us: what is not on disk is not confirmed.
            return f"{text} (set appendonly yes)"
        raise StoreFailed(f"the server has refused a command: {text}")

    async def _connect(self, server: RedisServer) -> RedisConnection:
        """A connection to a server whose settings are right and that has our functions."""
        connection = await self._servers.connect(server.host, server.port)
        try:
            await self._servers.check(connection, server)
            await self._load(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _load(self, connection: RedisConnection) -> None:
        there = await connection.one("FUNCTION", "LIST", "LIBRARYNAME", "landbridge1", "WITHCODE")
        code = _functions()
        if not (isinstance(there, list) and there and _holds(there, code)):
            await connection.one("FUNCTION", "LOAD", "REPLACE", code)

    async def _line(self, unit: int) -> tuple[RedisServer, RedisConnection]:
        server = self._servers.of(self._key(unit))
        known = self._lines.get(unit)
        if known is not None and known[1].is_open and known[0] == server:
            return known
        if known is not None:
            known[1].close()
        self._lines[unit] = line = (server, await self._connect(server))
        return line

    async def _reader(self, unit: int) -> RedisConnection:
        return await self._reader_of(self._servers.of(self._key(unit)))

    async def _reader_of(self, server: RedisServer) -> RedisConnection:
        known = self._readers.get(server)
        if known is None or not known.is_open:
            fresh = await self._connect(server)
            known = self._readers.get(server)
            if known is not None and known.is_open:  # another read was quicker
                fresh.close()
            else:
                self._readers[server] = known = fresh
        return known

    async def _read(self, unit: int, work: Callable[[RedisConnection], Awaitable[T]]) -> T:
        async def ask() -> T:
            return await work(await self._reader(unit))

        return await self._passing(ask())

    async def _written(self, unit: int, *command: Argument) -> Reply:
        """The answer to a command that writes, once what it has written is on disk at every replica."""
        server, connection = await self._line(unit)
        within = 2 * REPLICAS_WITHIN / 1000 + 15.0
        if server.replicas:
            # WAIT first: WAITAOF alone waits up to a second for the replicas' next word of their own.
            waits: list[list[Argument]] = [
                ["WAIT", server.replicas, REPLICAS_WITHIN],
                ["WAITAOF", 1, server.replicas, REPLICAS_WITHIN],
            ]
        else:
            waits = [["WAITAOF", 1, 0, REPLICAS_WITHIN]]
        reply, *_, stored = await connection.ask(command, *waits, within=within)
        if isinstance(reply, ErrorReply):
            raise reply
        if isinstance(stored, ErrorReply):
            raise stored
        assert isinstance(stored, list)
        here, there = stored
        if here != 1:
            raise Passing(
                f"{server} has not synced the commit to its disk within {REPLICAS_WITHIN / 1000:.0f} s"
            )
        if not isinstance(there, int) or there < server.replicas:
            raise Passing(
                f"{there!r} of {server.replicas} replicas of {server} have the commit on disk (each needs "
                f"appendonly yes)"
            )
        return reply

    # -- life --------------------------------------------------------------------------------------

    async def prepare(self, units: int | None) -> int | None:
        async def find() -> int | None:
            await self._servers.refresh()
            for server in self._servers.all:
                await self._reader_of(server)
            stored = await (await self._reader(0)).one("HMGET", self._record, "format", "units")
            assert isinstance(stored, list)
            if stored[0] is None or stored[1] is None:
                return None
            if _number(stored[0]) != FORMAT:
                raise too_new(self._address, _number(stored[0]))
            self._units = _number(stored[1])
            return self._units

        return await self._passing(find())

    async def make(self, units: int) -> int:
        async def made() -> int:
            await self._written(0, "HSETNX", self._record, "units", units)
            await self._written(0, "HSETNX", self._record, "format", FORMAT)
            self._units = _number(await (await self._reader(0)).one("HGET", self._record, "units"))
            return self._units

        return await self._passing(made())

    async def hold(self) -> None:
        """A connection of a name of its own says that this process has the store: it ends with the process,
        and the server's clock says when it was last heard of. Of two, the one that came first stays. Nodes of
        one terminal have another name, and keep out only who wants the store for itself."""
        await self._passing(self._hold())

    async def _hold(self) -> None:
        server = self._servers.of(self._key(0))
        place = f"{self._address.name}-{self._address.database or '0'}"
        alone, shared = f"landbridge-store-{place}", f"landbridge-node-{place}"
        name, others = (shared, {alone}) if self._is_shared else (alone, {alone, shared})
        if self._holding is None or not self._holding.is_open:
            connection = await self._servers.connect(server.host, server.port)
            try:
                await connection.one("CLIENT", "SETNAME", name)
                mine = _number(await connection.one("CLIENT", "ID"))
                await self._check_alone(connection, others, mine)
            except BaseException:
                connection.close()
                raise
            self._holding = connection
        else:
            await self._holding.one("PING")

    async def _check_alone(self, connection: RedisConnection, others: set[str], mine: int) -> None:
        clients = await connection.one("CLIENT", "LIST", "TYPE", "normal")
        assert isinstance(clients, bytes)
        for line in clients.decode(errors="replace").splitlines():
            facts = dict(each.partition("=")[::2] for each in line.split(" "))
            is_before = int(facts.get("id", mine)) < mine and int(facts["idle"]) * 1000 < SILENT
            if facts.get("name") in others and is_before:
                raise in_use(self._address, f"a process at {facts.get('addr', '?')}")

    async def close(self) -> None:
        self._disconnect()
        if self._holding is not None:
            # The server may notice late that the connection has ended.
            with suppress(ConnectionLost, ErrorReply):
                await self._holding.one("CLIENT", "SETNAME", "", within=1.0)
            self._holding.close()
            self._holding = None

    def _disconnect(self) -> None:
        for connection in (*(line[1] for line in self._lines.values()), *self._readers.values()):
            connection.close()
        self._lines.clear()
        self._readers.clear()

    # -- changing ----------------------------------------------------------------------------------

    async def claim(self, unit: int, claimant: bytes) -> int:
        command = ("FCALL", "lb1_claim", 1, self._key(unit), claimant)
        return _number(await self._passing(self._written(unit, *command)))

    async def commit(self, unit: int, epoch: int, number: int, writes: Sequence[Write]) -> CommitAnswer:
        arguments: list[Argument] = []
        needs_room = False
        for write in writes:
            arguments += _arguments(write, self._units)
            needs_room = needs_room or isinstance(write, Append | Copy)
        if len(arguments) > MOST_ARGUMENTS:
            raise TooLarge(f"a commit of {len(writes)} writes has more parts than Redis takes")
        function = "lb1_commit" if needs_room else "lb1_free"
        reply = await self._passing(
            self._written(unit, "FCALL", function, 1, self._key(unit), epoch, number, *arguments)
        )
        assert isinstance(reply, list)
        word, *rest = [each.decode() if isinstance(each, bytes) else each for each in reply]
        match word:
            case "OK":
                return CommitAnswer("done")
            case "KNOWN":
                return CommitAnswer("known")
            case "FENCED":
                return CommitAnswer("fenced", _number(rest[0]))
            case "LOST":
                return CommitAnswer("lost", _number(rest[0]), _number(rest[1]))
            case "GAP":
                return CommitAnswer("gap", _number(rest[1]), _number(rest[2]), _number(rest[0]))
            case "SOURCE":
                end = _number(rest[1]) if rest[1] else None
                return CommitAnswer("source", end, 0, _number(rest[0]), has_choice=rest[2] != "-")
        raise StoreFailed(f"the server has answered a commit with {word!r}")

    # -- reading -----------------------------------------------------------------------------------

    async def logs(self, unit: int, only: Sequence[int] | None = None) -> dict[int, LogBounds]:
        key = f"{self._key(unit)}:logs"
        if only is None:
            pairs = _texts(await self._read(unit, lambda reader: reader.one("HGETALL", key)))
            return {int(log): _bounds(raw) for log, raw in zip(pairs[::2], pairs[1::2], strict=True)}
        found = await self._read(unit, lambda reader: reader.one("HMGET", key, *map(str, only)))
        assert isinstance(found, list)
        return {
            log: _bounds(raw.decode()) for log, raw in zip(only, found, strict=True) if isinstance(raw, bytes)
        }

    async def read(self, unit: int, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        arguments = (self._key(unit), str(log), offset, min(max_bytes, LARGEST))
        reply = await self._read(unit, lambda reader: reader.one("FCALL_RO", "lb1_read", 1, *arguments))
        assert isinstance(reply, list)
        found: list[StoredBatch] = []
        for entry, data in zip(reply[::2], reply[1::2], strict=True):
            assert isinstance(entry, bytes)
            first, end, time, size, _, crc, said = entry.split(b" ")
            if not isinstance(data, bytes) or len(data) != int(size) or crc32(data) != int(crc):
                if found:
                    break
                raise StoreCorrupt(f"log {log}: the batch at offset {int(first)} is damaged or missing")
            choice = None if said == b"-" else bytes.fromhex(said[1:].decode())
            found.append(StoredBatch(int(first), int(end), int(time), data, choice))
        return found

    async def seek_time(self, unit: int, log: int, time: int) -> int:
        arguments = (self._key(unit), str(log), time)
        return _number(
            await self._read(unit, lambda reader: reader.one("FCALL_RO", "lb1_seek", 1, *arguments))
        )

    async def ledger(self, unit: int, log: int, producer: bytes) -> bytes | None:
        key = f"{self._key(unit)}:ledger:{log}"
        raw = await self._read(unit, lambda reader: reader.one("HGET", key, producer))
        return raw.partition(b"\n")[2] if isinstance(raw, bytes) else None

    async def documents(self, unit: int, kind: str, prefix: str) -> list[tuple[str, bytes]]:
        arguments = (self._key(unit), kind, prefix)
        reply = await self._read(unit, lambda reader: reader.one("FCALL_RO", "lb1_documents", 1, *arguments))
        assert isinstance(reply, list)
        found = []
        for key, value in zip(reply[::2], reply[1::2], strict=True):
            assert isinstance(key, bytes)
            if not isinstance(value, bytes):
                raise StoreCorrupt(f"the document {kind} {key.decode(errors='replace')} is missing")
            found.append((key.decode(), value))
        return found

    async def look(self) -> ServerRoom:
        async def looked() -> ServerRoom:
            some = self._servers.of(self._key(0))
            await self._servers.learn(await self._reader_of(some), some.host, some.port)
            used = most = 0
            is_low = is_bounded = False
            for server in self._servers.all:
                memory = await self._servers.check(await self._reader_of(server), server)
                if memory.most:
                    is_bounded = True
                    is_low = is_low or memory.used > memory.most * (1 - LITTLE)
                    used, most = used + memory.used, most + memory.most
            return ServerRoom(is_low, (max(0, most - used), most) if is_bounded else None)

        return await self._passing(looked())

    async def check(self, unit: int) -> list[str]:
        """That every stored batch has entries, and as many as are counted."""
        key = self._key(unit)
        holders: dict[bytes, int] = {}
        for log in await self.logs(unit):
            at = 0
            while True:
                command = ("ZRANGE", f"{key}:log:{log}", at, at + AT_ONCE - 1)
                entries = await self._read(unit, lambda reader, command=command: reader.one(*command))  # type: ignore[misc]
                assert isinstance(entries, list)
                for entry in entries:
                    assert isinstance(entry, bytes)
                    batch = entry.split(b" ")[4]
                    holders[batch] = holders.get(batch, 0) + 1
                if len(entries) < AT_ONCE:
                    break
                at += AT_ONCE
        raw = await self._read(unit, lambda reader: reader.one("HGETALL", f"{key}:shared"))
        assert isinstance(raw, list)
        counted = dict(zip(raw[::2], raw[1::2], strict=True))
        found = []
        for batch, count in holders.items():
            more = counted.pop(batch, b"0")
            if more != b"%d" % (count - 1):
                found.append(
                    f"unit {unit}: stored batch {batch.decode()} has {count} entries, counted {more!r} more"
                )
        found += [f"unit {unit}: stored batch {batch!r} is counted, and no log has it" for batch in counted]
        return found

    # -- for a copy of the store -------------------------------------------------------------------

    async def kinds(self, unit: int) -> list[str]:
        key = f"{self._key(unit)}:kinds"
        return sorted(_texts(await self._read(unit, lambda reader: reader.one("SMEMBERS", key))))

    async def ledger_logs(self, unit: int) -> list[int]:
        begin = f"{self._key(unit)}:ledger:"
        pattern = re.sub(r"([\[\]*?^\\])", r"\\\1", begin) + "*"
        found: set[int] = set()
        cursor: Reply = b"0"
        while True:
            command = (
                "SCAN",
                cursor.decode() if isinstance(cursor, bytes) else "0",
                "MATCH",
                pattern,
                "COUNT",
                AT_ONCE,
            )
            reply = await self._read(unit, lambda reader, command=command: reader.one(*command))  # type: ignore[misc]
            assert isinstance(reply, list)
            cursor = reply[0]
            found.update(int(each.removeprefix(begin)) for each in _texts(reply[1]))
            if cursor == b"0":
                return sorted(found)

    async def ledgers(self, unit: int, log: int) -> list[StoredEntry]:
        key = f"{self._key(unit)}:ledger:{log}"
        raw = await self._read(unit, lambda reader: reader.one("HGETALL", key))
        assert isinstance(raw, list)
        found = []
        for producer, value in zip(raw[::2], raw[1::2], strict=True):
            assert isinstance(producer, bytes)
            assert isinstance(value, bytes)
            head, _, entry = value.partition(b"\n")
            last, born = head.split(b" ")
            found.append(StoredEntry(producer, entry, int(last) if last else None, int(born)))
        return sorted(found, key=lambda each: each.producer)


def _arguments(write: Write, units: int) -> list[Argument]:
    match write:
        case Append(log, first, end, time, data):
            data = data if isinstance(data, bytes) else bytes(data)
            return ["A", str(log), first, end, time, crc32(data), data]
        case Copy(log, first, end, time, from_log, from_first, choice):
            said = "-" if choice is None else f"={choice.hex()}"
            return ["C", str(log), first, end, time, str(from_log), from_first, said]
        case Trim(log, before):
            return ["T", str(log), min(before, LARGEST), int(may_be_ledger_only(log, units))]
        case DropLog(log):
            return ["D", str(log)]
        case PutDocument(kind, key, value):
            return ["P", kind, key, value]
        case DeleteDocument(kind, key):
            return ["X", kind, key]
        case PutLedger(log, producer, None):
            return ["F", str(log), producer]
        case PutLedger(log, producer, bytes() as entry, last, born):
            return ["L", str(log), producer, entry, "" if last is None else last, born]
    raise BadRequest(f"a store can't write {write!r}")


def _functions() -> str:
    return "#!lua name=landbridge1\n" + files(__package__).joinpath("functions.lua").read_text()


def _holds(there: list[Reply], code: str) -> bool:
    """Is this code in an answer to FUNCTION LIST?"""
    return any(code.encode() == each or (isinstance(each, list) and _holds(each, code)) for each in there)


def _number(reply: Reply | str) -> int:
    if isinstance(reply, bytes | str | int):
        return int(reply)
    raise StoreFailed(f"the server has answered {reply!r} instead of a number")


def _texts(reply: Reply) -> list[str]:
    assert isinstance(reply, list)
    return [each.decode() for each in reply if isinstance(each, bytes)]


def _bounds(raw: str) -> LogBounds:
    return LogBounds(*map(int, raw.split(" ")))
