"""The table of nodes in PostgreSQL: one function of ``nodes.sql`` for each thing that the port asks for."""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib.resources import files
from typing import Any

import msgspec
import psycopg
from msgspec.structs import replace

from landbridge.core.cluster.roster import REMEMBERED
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.store_address import StoreAddress
from landbridge.core.time import SECOND
from landbridge.errors import StoreFailed
from landbridge.stores.memory_roster import name_taken, table_of, unknown_node
from landbridge.stores.postgres.connection import PostgresConnection
from landbridge.stores.remote import Away

FORGOTTEN_AFTER = round(REMEMBERED * SECOND)
#: The advisory lock under which the tables and functions are made.
MAKING = 0x6C62_6E6F_6465_7331
#: Nothing of the table is worth a wait for the disk or a standby.
SESSION = "SET synchronous_commit = off"


class PostgresRoster:
    """``units``: how many the store has, whose schema is there already."""

    def __init__(self, address: StoreAddress, units: int) -> None:
        self.units = units
        self._address = address
        self._schema = f'"{address.name}"'
        self._connection: PostgresConnection | None = None

    async def beat(
        self,
        record: NodeRecord,
        life: float,
        take: Collection[int] = (),
        release: Collection[int] = (),
    ) -> ClusterTable:
        said = msgspec.json.encode(replace(record, started_at=0, expires_at=0)).decode()
        span = round(life * SECOND)
        try:
            return await self._ask(
                "nodes_beat1(%b::bigint, %b::text, %b::text, %b::bigint, %b::text, %b::integer[], "
                "%b::integer[])",
                FORGOTTEN_AFTER, record.id, record.name, span, said, list(take), list(release),
            )  # fmt: skip
        except psycopg.Error as refused:
            holder = msgspec.json.decode(refused.diag.message_detail or "{}", type=NodeRecord)
            raise name_taken(record, holder.url) from None

    async def leave(self, id: str) -> ClusterTable:
        return await self._ask("nodes_leave1(%b::bigint, %b::text)", FORGOTTEN_AFTER, id)

    async def read(self) -> ClusterTable:
        return await self._ask("nodes_read1()")

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        try:
            return await self._ask(
                "nodes_drain1(%b::bigint, %b::text, %b::boolean)", FORGOTTEN_AFTER, name, draining
            )
        except psycopg.Error:
            raise unknown_node(name) from None

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def _ask(self, call: str, *values: Any) -> ClusterTable:
        """psycopg.Error: the function has refused."""
        try:
            connection = await self._connected()
            ((raw,),) = await connection.ask(f"SELECT {self._schema}.{call}", values or None)
        except Away as why:
            await self.close()
            raise StoreFailed(f"the table of nodes in {self._address} can't be reached: {why}") from None
        return self._table(json.loads(raw))

    async def _connected(self) -> PostgresConnection:
        known = self._connection
        if known is not None and known.is_open:
            return known
        connection = await PostgresConnection.to(self._address)
        try:
            await connection.ask(SESSION)
            await self._make(connection)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    async def _make(self, connection: PostgresConnection) -> None:
        newest = f"{self._schema}.nodes_drain1"
        ((is_there,),) = await connection.ask("SELECT to_regproc(%b) IS NOT NULL", [newest])
        if is_there:
            return
        code = files(__package__).joinpath("nodes.sql").read_text().replace("SCHEMA.", f"{self._schema}.")
        # One transaction: of two nodes that start at once, the second one makes it all anew.
        await connection.ask(f"BEGIN; SELECT pg_advisory_xact_lock({MAKING}); {code}; COMMIT")

    def _table(self, said: dict[str, Any]) -> ClusterTable:
        nodes = [
            replace(msgspec.json.decode(record, type=NodeRecord), started_at=started, expires_at=expires)
            for record, started, expires in said["nodes"]
        ]
        return table_of(said["now"], nodes, dict(said["owners"]), said["drained"], self.units)
