"""The table of nodes in Redis or Valkey: one function of ``nodes.lua`` for each thing that the port asks
for."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from landbridge.core.cluster.roster import REMEMBERED
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.store_address import StoreAddress
from landbridge.core.time import SECOND
from landbridge.errors import StoreFailed
from landbridge.stores.memory_roster import name_taken, table_of, unknown_node
from landbridge.stores.redis.resp import Argument, ConnectionLost, ErrorReply, RedisConnection, Reply
from landbridge.stores.redis.servers import Passing, RedisServers

LIBRARY = "landbridge_nodes1"
FORGOTTEN_AFTER = round(REMEMBERED * SECOND)


class RedisRoster:
    """``units``: how many the store has. Whoever asks says how long an answer may take: after that, whoever
    is waiting gives up, and the connection is made anew for the next question."""

    def __init__(self, address: StoreAddress, units: int) -> None:
        self.units = units
        self._address = address
        self._servers = RedisServers(address)
        self._key = f"{{{address.name}:0}}:nodes"
        self._connection: RedisConnection | None = None

    async def beat(
        self,
        record: NodeRecord,
        life: float,
        take: Collection[int] = (),
        release: Collection[int] = (),
    ) -> ClusterTable:
        said = msgspec.json.encode(replace(record, started_at=0, expires_at=0))
        units = [str(unit) for unit in (*take, *release)]
        span = round(life * SECOND)
        reply = await self._ask("lb1_node_beat", record.id, record.name, span, said, len(take), *units)
        if reply[0] == b"TAKEN":
            assert isinstance(reply[1], bytes)
            raise name_taken(record, msgspec.json.decode(reply[1], type=NodeRecord).url)
        return self._table(reply)

    async def leave(self, id: str) -> ClusterTable:
        return self._table(await self._ask("lb1_node_leave", id))

    async def read(self) -> ClusterTable:
        return self._table(await self._ask("lb1_node_read"))

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        reply = await self._ask("lb1_node_drain", name, int(draining))
        if reply[0] == b"UNKNOWN":
            raise unknown_node(name)
        return self._table(reply)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, function: str, *arguments: Argument) -> list[Reply]:
        try:
            try:
                return await self._asked(function, *arguments)
            except ErrorReply as error:
                await self.close()
                if not any(word in str(error) for word in ("unction not found", "MOVED", "READONLY")):
                    raise
                # The server is new, or another one has the slot now.
                return await self._asked(function, *arguments)
        except (ConnectionLost, Passing, ErrorReply) as error:
            await self.close()
            raise StoreFailed(f"the table of nodes in {self._address} can't be reached: {error}") from None
        except BaseException:
            await self.close()
            raise

    async def _asked(self, function: str, *arguments: Argument) -> list[Reply]:
        connection = await self._connected()
        reply = await connection.one("FCALL", function, 1, self._key, FORGOTTEN_AFTER, *arguments)
        assert isinstance(reply, list)
        return reply

    async def _connected(self) -> RedisConnection:
        known = self._connection
        if known is not None and known.is_open:
            return known
        await self._servers.refresh()
        server = self._servers.of(self._key)
        self._connection = connection = await self._servers.connect(server.host, server.port)
        code = _functions()
        there = await connection.one("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
        if code.encode() not in _flat(there):
            await connection.one("FUNCTION", "LOAD", "REPLACE", code)
        return connection

    def _table(self, reply: list[Reply]) -> ClusterTable:
        now, raw = reply
        assert isinstance(now, bytes)
        assert isinstance(raw, list)
        nodes: dict[str, NodeRecord] = {}
        owners: dict[int, str] = {}
        drained: set[str] = set()
        for field, value in zip(raw[::2], raw[1::2], strict=True):
            assert isinstance(field, bytes)
            assert isinstance(value, bytes)
            kind, _, name = field.decode().partition(":")
            if kind == "node":
                times, _, said = value.partition(b"\n")
                started, expires, _ = map(int, times.split(b" "))
                record = msgspec.json.decode(said, type=NodeRecord)
                nodes[name] = replace(record, started_at=started, expires_at=expires)
            elif kind == "owner":
                owners[int(name)] = value.decode()
            elif kind == "drained":
                drained.add(name)
        return table_of(int(now), nodes.values(), owners, drained, self.units)


def _functions() -> str:
    return f"#!lua name={LIBRARY}\n" + files(__package__).joinpath("nodes.lua").read_text()


def _flat(there: Reply) -> list[Reply]:
    if not isinstance(there, list):
        return [there]
    return [each for inner in there for each in _flat(inner)]
