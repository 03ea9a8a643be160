"""A connection to PostgreSQL: how it is made, and which of its errors go by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from landbridge.core.store_address import StoreAddress
from landbridge.errors import BadRequest, BusError, StoreFailed, StoreFull, TooLarge
from landbridge.stores.remote import Away

#: Seconds that a connection may take to be made, and a server to answer.
CONNECT_WITHIN, ANSWER_WITHIN = 5, 60.0
#: The oldest version, as PostgreSQL numbers them.
LEAST = 150_000
#: A server that is gone without a word is noticed after about ten seconds.
KEEPALIVES = {
    "keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}  # fmt: skip
#: For each session. A timeout would cut the wait for a standby short, and what it cuts short counts as
#: committed.
SESSION = (
    "SET synchronous_commit = on; SET statement_timeout = 0; SET lock_timeout = 0; SET "
    "client_min_messages = warning; "
    "SET idle_session_timeout = 0; SET work_mem = '64MB'; SET default_transaction_isolation = 'read "
    "committed'; "
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET plan_cache_mode = force_generic_plan; SET jit = off; "
    # PostgreSQL 15 and 16 don't have it.
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'"
)
#: What has to be set, and why.
SETTINGS = {
    "fsync": "a crash of the machine would lose what was acked",
    "full_page_writes": "a crash of the machine would damage pages",
}
#: A warning that the wait for a standby was cut short: the commit is only here. It has no state of its own.
WARNING = "01000"
#: What a failed connection says where another attempt would fail as well.
REFUSED = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
    "permission denied",
)


def conninfo_of(address: StoreAddress) -> dict[str, Any]:
    """What libpq is given. BadRequest for options that it doesn't know."""
    given: dict[str, Any] = {"target_session_attrs": "read-write", **dict(address.options)}
    if address.hosts:
        given["host"] = ",".join(host for host, _ in address.hosts)
        given["port"] = ",".join(str(port or 5432) for _, port in address.hosts)
    named = {
        "user": address.user, "password": address.password, "dbname": address.database, "sslrootcert":
        address.ca
    }  # fmt: skip
    given.update({name: value for name, value in named.items() if value})
    try:
        make_conninfo("", **given)
    except psycopg.ProgrammingError as error:
        raise BadRequest(
            f"the store's URL has an option that PostgreSQL doesn't know: {_said(error)}"
        ) from None
    return {
        **KEEPALIVES, "connect_timeout": CONNECT_WITHIN, "application_name": "landbridge", **given,
        "client_encoding": "UTF8",
    }  # fmt: skip


class PostgresConnection:
    """One connection; statements follow each other."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self._warned = False
        connection.add_notice_handler(self._notice)

    @classmethod
    async def to(cls, address: StoreAddress) -> PostgresConnection:
        """Away where another attempt may succeed, StoreFailed where none will."""
        try:
            made = await psycopg.AsyncConnection.connect(**conninfo_of(address), autocommit=True)
        except (psycopg.Error, OSError) as error:
            text = _said(error)
            if any(each in text for each in REFUSED):
                hint = (
                    "check user, password and database; a password comes from LANDBRIDGE_STORE, a file "
                    "(--store @FILE), PGPASSWORD or ~/.pgpass"
                )
                raise StoreFailed(f"{address} has refused the login: {text}", hint=hint) from None
            raise Away(text) from None
        connection = cls(made)
        try:
            await connection.ask(SESSION)
            await connection._check(address)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return not self._connection.closed

    async def ask(
        self, statement: str, values: Sequence[Any] | None = None, *, within: float | None = ANSWER_WITHIN
    ) -> list[tuple[Any, ...]]:
        """The rows of an answer. Away where there is none, or where it is not on disk at a standby."""
        async with self._turn:
            self._warned = False
            try:
                async with asyncio.timeout(within):
                    found = await self._connection.execute(
                        statement.encode(), values or None, binary=bool(values), prepare=bool(values)
                    )
                    rows = await found.fetchall() if found.description is not None else []
            except TimeoutError:
                await self.close()
                raise Away(f"no answer within {within:.0f} s") from None
            except (psycopg.Error, OSError) as error:
                raise await self._meaning(error) from None
            except BaseException:
                await self.close()
                raise
            if self._warned:
                raise Away("the wait for a standby was cut short: the commit may be on this server alone")
            return rows

    def _notice(self, diagnostic: Any) -> None:
        if diagnostic.sqlstate == WARNING:
            self._warned = True

    async def _meaning(self, error: Exception) -> BusError | Away | psycopg.Error:
        """What an error says to whoever waits. An error of our own functions is left to the caller."""
        state = getattr(error, "sqlstate", None) or ""
        if state.startswith("LB"):
            assert isinstance(error, psycopg.Error)
            return error
        if isinstance(error, pg.DiskFull):
            return StoreFull(
                f"the disk of PostgreSQL is full: {_said(error)}",
                hint="give its disk more room, or delete topics and run VACUUM: publishing then goes on "
                "by itself",
            )
        if isinstance(error, pg.InsufficientPrivilege):
            hint = (
                "GRANT CREATE ON DATABASE … TO the user, or make the schema for the user: "
                "CREATE SCHEMA … AUTHORIZATION …"
            )
            return StoreFailed(
                f"PostgreSQL doesn't let the user do what a store needs: {_said(error)}", hint=hint
            )
        if isinstance(error, pg.ProgramLimitExceeded):
            # Asking again would not help: the key of a document or a producer is longer than an index takes.
            return TooLarge(f"PostgreSQL can't store it: {_said(error)}", hint="use shorter names and keys")
        passes = isinstance(
            error, psycopg.OperationalError | psycopg.InterfaceError | OSError | pg.ReadOnlySqlTransaction
        )
        if passes:
            if not isinstance(error, pg.SerializationFailure | pg.DeadlockDetected):
                await self.close()  # after a failover, this may be the wrong server
            return Away(_said(error))
        return StoreFailed(f"PostgreSQL has refused a statement: {_said(error)}")

    async def _check(self, address: StoreAddress) -> None:
        """StoreFailed where the server would not keep what it answers, with the setting to change."""
        names = ["server_version_num", "server_version", *SETTINGS]
        rows = await self.ask("SELECT name, setting FROM pg_settings WHERE name = ANY(%b)", [names])
        settings = dict(rows)
        if int(settings["server_version_num"]) < LEAST:
            raise StoreFailed(
                f"{address} is PostgreSQL {settings['server_version']}", hint="run PostgreSQL 15 or newer"
            )
        for name, why in SETTINGS.items():
            if settings.get(name) != "on":
                hint = f"ALTER SYSTEM SET {name} = on; then SELECT pg_reload_conf();"
                raise StoreFailed(f"{address} has {name} {settings.get(name)}: {why}", hint=hint)

    async def close(self) -> None:
        with suppress(psycopg.Error, OSError):
            await self._connection.close()


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
