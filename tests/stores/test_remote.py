"""What stores on servers promise beside the contract: fencing, outcomes that nobody was told, servers that
come back with less than they had, wrong settings, and passwords that nobody sees."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from landbridge.core.log.store import Append, DropLog, PutDocument, PutLedger, Trim, Write
from landbridge.core.store_address import parse_address
from landbridge.errors import BadRequest, Fenced, StoreBusy, StoreFailed, StoreFull, StoreTooNew, TooLarge
from landbridge.node.stores import address_of, store_at
from landbridge.stores.postgres.store import PostgresEngine
from landbridge.stores.redis.servers import RIGHTS
from landbridge.stores.redis.store import RedisEngine
from landbridge.stores.remote import RemoteStore
from tests.proxy import Proxy
from tests.servers import Postgres, Valkey, name_of, server_folder, shared_postgres, shared_valkey
from tests.waiting import eventually

SHARED: dict[str, Callable[[], Any]] = {"redis": shared_valkey, "postgres": shared_postgres}
ALL = 1 << 40


@pytest.fixture(params=SHARED)
def server(request: pytest.FixtureRequest) -> Any:
    return SHARED[request.param]()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with server_folder() as folder:
        started = Valkey(folder / "valkey").start()
        yield started
        started.kill()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with server_folder() as folder:
        started = Postgres(folder / "postgres").start()
        yield started
        started.kill()


class BesideRedis(RedisEngine):
    """Lets another process have the store at the same time."""

    async def hold(self) -> None: ...


class BesidePostgres(PostgresEngine):
    """Lets another process have the store at the same time."""

    async def hold(self) -> None: ...


def beside(url: str) -> RemoteStore:
    address = parse_address(url)
    engine = BesideRedis(address) if address.scheme == "redis" else BesidePostgres(address)
    return RemoteStore(address, engine)


@asynccontextmanager
async def opened(store: RemoteStore | str) -> AsyncIterator[RemoteStore]:
    store = store_at(parse_address(store)) if isinstance(store, str) else store
    await store.open()
    try:
        yield store
    finally:
        store.leave_within(0)
        await store.close()


def through(url: str, server: Any, proxy: Proxy) -> str:
    return url.replace(f":{server.port}", f":{proxy.port}")


def batch(number: int, log: int = 1) -> Append:
    return Append(log, number, number + 1, 0, b"batch %d" % number)


async def numbers(store: RemoteStore, log: int = 1) -> list[int]:
    found = await store.read(log, 0, ALL)
    assert all(each.data == b"batch %d" % each.first for each in found)
    return [each.first for each in found]


# -- owners


async def test_a_commit_of_an_earlier_owner_is_fenced(server: Any, tmp_path: Path) -> None:
    url = server.url(name_of(tmp_path), units=4)
    async with opened(beside(url)) as one, opened(beside(url)) as two:
        first = await one.claim(1)
        await one.commit(1, first, [batch(0)])
        second = await two.claim(1)
        assert second > first
        with pytest.raises(Fenced):
            await one.commit(1, first, [batch(1), PutDocument("topic", "a", b"1")])
        await two.commit(1, second, [batch(1)])
        with pytest.raises(Fenced):
            await one.commit(1, first, [])
        assert await numbers(one) == [0, 1]
        assert await one.documents(1, "topic") == []
        # Other units are as they were.
        other = await one.claim(2)
        await one.commit(2, other, [batch(0, log=2)])
        # An owner that comes back has a new epoch.
        third = await one.claim(1)
        assert third > second
        await one.commit(1, third, [batch(2)])
        with pytest.raises(Fenced):
            await two.commit(1, second, [batch(3)])


async def test_units_do_not_mix(server: Any, tmp_path: Path) -> None:
    async with opened(server.url(name_of(tmp_path), units=4)) as store:
        epochs = [await store.claim(unit) for unit in range(4)]
        with pytest.raises(BadRequest):
            await store.commit(1, epochs[1], [batch(0, log=2)])
        for unit in range(4):
            writes: list[Write] = [batch(0, log=4 + unit), PutDocument("topic", "a", b"%d" % unit)]
            await store.commit(unit, epochs[unit], [*writes, PutLedger(4 + unit, b"p", b"e")])
        for unit in range(4):
            assert list(await store.logs(unit)) == [4 + unit]
            assert await store.documents(unit, "topic") == [("a", b"%d" % unit)]
            assert await store.kinds(unit) == ["topic"]
            assert await store.ledger_logs(unit) == [4 + unit]
        assert await store.check() == []


async def test_a_store_keeps_the_units_that_it_was_made_with(server: Any, tmp_path: Path) -> None:
    name = name_of(tmp_path)
    async with opened(server.url(name, units=4)) as store:
        assert store.units == 4
    found = store_at(parse_address(server.url(name, units=None)))
    assert await found.find() == 4
    await found.close()
    with pytest.raises(BadRequest, match="4 units, not 8"):
        async with opened(server.url(name, units=8)):
            pass


async def test_a_process_that_has_the_store_keeps_others_out_until_it_is_gone(
    server: Any, tmp_path: Path
) -> None:
    url = server.url(name_of(tmp_path))
    async with opened(url):
        with pytest.raises(StoreBusy, match="in use by"):
            async with opened(url):
                pass
    async with opened(url):
        pass


# -- outcomes that nobody was told


@pytest.mark.parametrize("cut", ["request", "answer"])
async def test_a_commit_whose_answer_is_lost_is_done_once(server: Any, tmp_path: Path, cut: str) -> None:
    url = server.url(name_of(tmp_path))
    async with Proxy(server.port) as proxy, opened(through(url, server, proxy)) as store:
        epoch = await store.claim(0)
        await store.commit(0, epoch, [batch(0)])
        proxy.cut = cut
        await store.commit(0, epoch, [batch(1), PutDocument("topic", "a", b"1")])
        await store.commit(0, epoch, [batch(2), Trim(1, 1)])
        assert proxy.cuts == 1
        assert await numbers(store) == [1, 2]


async def test_a_claim_whose_answer_is_lost_is_one_claim(server: Any, tmp_path: Path) -> None:
    """The first request may reach the server after the second, and must not take the unit from its own
    owner."""
    url = server.url(name_of(tmp_path))
    async with Proxy(server.port) as proxy, opened(through(url, server, proxy)) as store:
        first = await store.claim(0)
        proxy.cut = "answer"
        epoch = await store.claim(0)
        assert (epoch, proxy.cuts) == (first + 1, 1)
        await store.commit(0, epoch, [batch(0)])
        assert await store.claim(0) == first + 2


async def test_whatever_is_cut_every_commit_happens_once(server: Any, tmp_path: Path) -> None:
    url = server.url(name_of(tmp_path), units=2)
    dice = random.Random(7)
    async with Proxy(server.port) as proxy, opened(through(url, server, proxy)) as store:
        epochs = [await store.claim(unit) for unit in range(2)]

        async def commits(unit: int) -> None:
            for number in range(60):
                proxy.cut, proxy.after = dice.choice(["", "request", "answer"]), dice.randrange(4)
                bounds = await store.commit(
                    unit, epochs[unit], [batch(number, log=2 + unit), Trim(2 + unit, number - 5)]
                )
                assert bounds[2 + unit].end == number + 1
                assert bounds[2 + unit].first == max(0, number - 5)

        await asyncio.gather(commits(0), commits(1))
        assert proxy.cuts > 20
        for unit in range(2):
            assert await numbers(store, 2 + unit) == list(range(54, 60))
        assert await store.check() == []


async def test_a_commit_that_was_done_before_the_unit_changed_hands_is_told_as_done(
    server: Any, tmp_path: Path
) -> None:
    """Its answer was lost, and another owner has claimed the unit before it was asked again."""
    url = server.url(name_of(tmp_path))
    async with (
        Proxy(server.port) as proxy,
        opened(beside(through(url, server, proxy))) as one,
        opened(beside(url)) as two,
    ):
        epoch = await one.claim(0)
        await one.commit(0, epoch, [batch(0)])
        proxy.cut = "answer"
        commit = asyncio.ensure_future(one.commit(0, epoch, [batch(1)]))
        await eventually(lambda: proxy.cuts)
        proxy.is_silent = True
        second = await two.claim(0)
        done = await numbers(two) == [0, 1]
        proxy.is_silent = False
        if done:
            assert await commit == {}
        else:
            with pytest.raises(Fenced):
                await commit
        await two.commit(0, second, [batch(2 if done else 1)])
        with pytest.raises(Fenced):
            await one.commit(0, epoch, [batch(3)])


async def test_a_commit_waits_for_a_server_that_is_away(valkey: Valkey, postgres: Postgres) -> None:
    for server in (valkey, postgres):
        async with opened(server.url("away")) as store:
            epoch = await store.claim(0)
            await store.commit(0, epoch, [batch(0)])
            server.kill()
            commit = asyncio.ensure_future(store.commit(0, epoch, [batch(1)]))
            await eventually(lambda store=store: store.trouble)
            assert not commit.done()
            await asyncio.to_thread(server.start)
            await commit
            assert store.trouble == ""
            assert await numbers(store) == [0, 1]
            # A process that ends doesn't wait for ever; the outcome is unknown, and nothing more is written.
            server.kill()
            store.leave_within(0.1)
            with pytest.raises(StoreFailed, match="can't be used"):
                await store.commit(0, epoch, [batch(2)])
            await asyncio.to_thread(server.start)
            with pytest.raises(StoreFailed):
                await store.commit(0, epoch, [batch(3)])


async def test_a_server_that_has_lost_what_it_confirmed_is_not_written_to(valkey: Valkey) -> None:
    """As after a failover to a replica without the last commits: an older state of the server comes back."""
    async with opened(valkey.url("lost")) as store:
        epoch = await store.claim(0)
        await store.commit(0, epoch, [batch(0)])
        aside = valkey.folder.with_name("older")
        shutil.copytree(valkey.folder, aside)
        await store.commit(0, epoch, [batch(1)])
        await store.commit(0, epoch, [batch(2)])
        valkey.kill()
        shutil.rmtree(valkey.folder)
        aside.rename(valkey.folder)
        valkey.start()
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(StoreFailed, match="has lost commits that it had confirmed"):
                    await store.commit(0, epoch, [batch(3)])
        assert any("has lost commits" in line["event"] for line in logs)
        assert await numbers(store) == [0]
    async with opened(valkey.url("lost")) as store:
        await store.commit(0, await store.claim(0), [batch(1)])
        assert await numbers(store) == [0, 1]


async def test_a_store_that_was_emptied_under_a_terminal_is_not_written_to(
    server: Any, tmp_path: Path
) -> None:
    name = name_of(tmp_path)
    async with opened(server.url(name)) as store:
        epoch = await store.claim(0)
        await store.commit(0, epoch, [batch(0)])
        if isinstance(server, Valkey):
            for key in server.ask("KEYS", f"{{{name}:*"):
                server.ask("DEL", key)
        else:
            server.ask(f"TRUNCATE {name}.unit, {name}.log, {name}.entry, {name}.batch, {name}.document")
        with pytest.raises(StoreFailed, match="has lost commits"):
            await store.commit(0, epoch, [batch(1)])


# -- room


async def test_without_memory_what_frees_room_goes_through(valkey: Valkey) -> None:
    valkey.ask("CONFIG", "SET", "maxmemory", 40 << 20)
    async with opened(valkey.url("full")) as store:
        epoch = await store.claim(0)
        free, whole = await store.disk() or (0, 0)
        assert (free > 0, whole) == (True, 40 << 20)
        large, number = b"x" * (1 << 20), 0
        with pytest.raises(StoreFull, match="maxmemory"):
            while True:
                await store.commit(0, epoch, [Append(1, number, number + 1, 0, large)])
                number += 1
        assert number > 10
        await eventually(lambda: store.is_low)
        await store.commit(0, epoch, [PutDocument("cursor", "a", b"1"), Trim(1, number - 2)])
        await store.commit(0, epoch, [DropLog(1)])
        await eventually(lambda: not store.is_low)
        await store.commit(0, epoch, [Append(2, 0, 1, 0, large)])
        assert await store.check() == []


# -- settings and passwords


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("appendfsync", "everysec", "always"),
        ("appendonly", "no", "yes"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
async def test_redis_with_a_wrong_setting_is_refused_with_the_right_one(
    valkey: Valkey, name: str, wrong: str, right: str
) -> None:
    valkey.ask("CONFIG", "SET", name, wrong)
    with pytest.raises(StoreFailed, match=f"{name} {wrong}") as refused:
        async with opened(valkey.url("t")):
            pass
    assert f"CONFIG SET {name} {right}" in refused.value.hint
    valkey.ask("CONFIG", "SET", name, right)
    async with opened(valkey.url("t")):
        pass


async def test_postgres_with_a_wrong_setting_is_refused_with_the_right_one() -> None:
    with server_folder() as folder:
        server = Postgres(folder / "postgres", fsync="off").start()
        with pytest.raises(StoreFailed, match="fsync off") as refused:
            async with opened(server.url("t")):
                pass
        assert "ALTER SYSTEM SET fsync = on" in refused.value.hint
        server.kill()


async def test_a_replica_is_not_taken_for_a_server(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landbridge.stores.remote.OPEN_WITHIN", 0.1)
    valkey.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreFailed, match="takes no writes"):
        async with opened(valkey.url("t")):
            pass


async def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landbridge.stores.remote.OPEN_WITHIN", 0.1)
    for scheme in ("redis", "postgresql"):
        with pytest.raises(StoreFailed, match=f"{scheme}://nobody@127.0.0.1:1/0 can't be used"):
            async with opened(f"{scheme}://nobody:secret@127.0.0.1:1/0"):
                pass


async def test_data_of_a_newer_version_is_refused(server: Any, tmp_path: Path) -> None:
    name = name_of(tmp_path)
    async with opened(server.url(name)):
        pass
    if isinstance(server, Valkey):
        server.ask("HSET", f"{{{name}:0}}:store", "format", 2)
    else:
        server.ask(f"UPDATE {name}.store SET format = 2")
    with pytest.raises(StoreTooNew, match="form 2"):
        async with opened(server.url(name)):
            pass


async def test_a_password_is_needed_and_nobody_sees_it(valkey: Valkey, postgres: Postgres) -> None:
    secret = "s3cr3t-p@ss"
    valkey.ask("CONFIG", "SET", "requirepass", secret)
    postgres.ask(f"ALTER ROLE landbridge PASSWORD '{secret}'")
    rules = postgres.data / "pg_hba.conf"
    rules.write_text(rules.read_text().replace("trust", "scram-sha-256"))
    postgres.kill()
    # Without a password its own look whether the server answers is refused, too: that is an answer.
    postgres.start(needs_password=True)
    for server in (valkey, postgres):
        bare = server.url("t")
        for given in ("", "wrong-w0rd"):
            user = "default" if server is valkey else "landbridge"
            place = bare.partition("://")[2].partition("@")[2] or bare.partition("://")[2]
            url = f"{bare.partition('://')[0]}://{user}:{given}@{place}" if given else bare
            with structlog.testing.capture_logs() as logs, pytest.raises(StoreFailed) as refused:
                async with opened(url):
                    pass
            told = f"{refused.value} {refused.value.hint} {logs}"
            assert "wrong-w0rd" not in told
            assert "login" in told
        right = f"{bare.partition('://')[0]}://{user}:s3cr3t-p%40ss@{place}"
        address = parse_address(right)
        assert secret not in f"{address} {address!r}"
        async with opened(right) as store:
            await store.commit(0, await store.claim(0), [batch(0)])
            assert "s3cr3t" not in repr(store.address)


async def test_users_with_few_rights(valkey: Valkey, postgres: Postgres) -> None:
    valkey.ask("ACL", "SETUSER", "few", "on", ">pw", "~{t:*", *RIGHTS.split())
    async with opened(f"redis://few:pw@127.0.0.1:{valkey.port}?name=t&units=2") as store:
        await store.commit(1, await store.claim(1), [batch(0), PutLedger(1, b"p", b"e")])
        assert (await store.ledger_logs(1), await numbers(store)) == ([1], [0])
        assert await store.check() == []
    with pytest.raises(StoreFailed, match="WRONGPASS"):  # it doesn't go in as somebody else
        async with opened(f"redis://few@127.0.0.1:{valkey.port}?name=other"):
            pass
    valkey.ask("ACL", "SETUSER", "few", "-info")
    with pytest.raises(StoreFailed) as refused:
        async with opened(f"redis://few:pw@127.0.0.1:{valkey.port}?name=t"):
            pass
    assert RIGHTS in refused.value.hint
    postgres.ask("CREATE ROLE few LOGIN")
    url = f"postgresql://few@127.0.0.1:{postgres.port}/postgres?name=given&units=2"
    with pytest.raises(StoreFailed) as refused:
        async with opened(url):
            pass
    assert "CREATE SCHEMA" in refused.value.hint
    postgres.ask("CREATE SCHEMA given AUTHORIZATION few")
    async with opened(url) as store:
        await store.commit(1, await store.claim(1), [batch(0)])
        assert await numbers(store) == [0]


def test_a_password_among_the_arguments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://lb:secret@db.lan"
    with pytest.raises(BadRequest, match="password") as refused:
        address_of(url)
    assert "secret" not in f"{refused.value} {refused.value.hint}"
    file = tmp_path / "url"
    file.write_text(f"{url}\n")
    file.chmod(0o644)
    with pytest.raises(BadRequest, match="others than its owner"):
        address_of(f"@{file}")
    file.chmod(0o600)
    found = address_of(f"@{file}")
    assert found is not None
    assert (found.user, found.password, str(found)) == ("lb", "secret", "redis://lb@db.lan")
    monkeypatch.setenv("LANDBRIDGE_STORE", url)
    assert address_of(None) == found
    monkeypatch.delenv("LANDBRIDGE_STORE")
    assert address_of(None) is None
    with pytest.raises(BadRequest, match="journal, memory, or a URL"):
        address_of("sqlite")


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("psycopg", "landbridge.stores.postgres")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadRequest, match="needs psycopg") as refused:
        store_at(parse_address("postgresql://h/db"))
    assert "landbridge[postgres]" in refused.value.hint


# -- what a server refuses for a while, or for good


async def test_a_server_that_wants_more_replicas_or_has_no_connection_left_is_waited_for(
    valkey: Valkey,
) -> None:
    import valkey as client

    async with opened(valkey.url("wait")) as store:
        epoch = await store.claim(0)
        await store.commit(0, epoch, [batch(0)])
        valkey.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        waiting = asyncio.create_task(store.commit(0, epoch, [batch(1)]))
        await eventually(lambda: "NOREPLICAS" in store.trouble)
        valkey.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        await waiting
        with client.Valkey(port=valkey.port) as other:
            other.execute_command("CONFIG", "SET", "maxclients", 1)
            other.execute_command("CLIENT", "KILL", "TYPE", "normal")
            waiting = asyncio.create_task(store.commit(0, epoch, [batch(2)]))
            await eventually(lambda: "max number of clients" in store.trouble)
            other.execute_command("CONFIG", "SET", "maxclients", 1000)
        await waiting
        assert await numbers(store) == [0, 1, 2]


async def test_a_key_that_the_server_can_not_store_is_refused_at_once(server: Any, tmp_path: Path) -> None:
    async with opened(server.url(name_of(tmp_path))) as store:
        epoch = await store.claim(0)
        key = random.Random(1).randbytes(3000)
        if isinstance(server, Postgres):  # Redis has no limit
            for write in (PutDocument("kind", key.hex(), b""), PutLedger(1, key, b"")):
                with pytest.raises(TooLarge):
                    await store.commit(0, epoch, [batch(0), write])
        with pytest.raises(BadRequest):
            await store.commit(0, epoch, [batch(0), PutDocument("kind", "\ud800", b"")])
        await store.commit(0, epoch, [batch(0)])
        assert await numbers(store) == [0]


@pytest.mark.parametrize("name", ["user", "order", "primary"])
async def test_a_store_may_be_called_by_a_word_of_sql(name: str) -> None:
    for _ in range(2):
        async with opened(shared_postgres().url(name)) as store:
            end = len(await numbers(store))
            await store.commit(0, await store.claim(0), [batch(end), Trim(1, end)])
            assert await store.check() == []


async def test_a_database_of_any_encoding_has_a_store() -> None:
    server = shared_postgres()
    server.ask("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    async with opened(server.url("encoded").replace("/postgres", "/plain")) as store:
        await store.commit(0, await store.claim(0), [batch(0), PutDocument("kind", "ü", b"")])
        assert await store.documents(0, "kind", "ü") == [("ü", b"")]


async def test_timeouts_of_the_role_end_no_commit() -> None:
    import psycopg

    postgres = shared_postgres()
    postgres.ask("CREATE ROLE hasty LOGIN")
    postgres.ask("GRANT CREATE ON DATABASE postgres TO hasty")

    for name in ("statement", "lock", "transaction"):
        there = postgres.ask(f"SELECT 1 FROM pg_settings WHERE name = '{name}_timeout'")
        if there:  # PostgreSQL 15 and 16 know no timeout of transactions
            postgres.ask(f"ALTER ROLE hasty SET {name}_timeout = '20ms'")
    async with opened(postgres.url("slow").replace("landbridge@", "hasty@")) as store:
        epoch = await store.claim(0)
        place = f"host=127.0.0.1 port={postgres.port} user=landbridge dbname=postgres"
        no_limits = "-c statement_timeout=0 -c lock_timeout=0 -c transaction_timeout=0"
        with psycopg.connect(place, options=no_limits) as other:
            other.execute("SELECT * FROM slow.unit FOR UPDATE")
            waiting = asyncio.create_task(store.commit(0, epoch, [batch(0)]))
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            await eventually(lambda: other.execute(waits).fetchall() != [])
            other.execute("SELECT pg_sleep(0.1)")
            other.rollback()
        await waiting
        assert await numbers(store) == [0]


async def test_an_option_that_postgresql_does_not_know_is_refused_at_once() -> None:
    url = "postgresql://u:s3cr3t@127.0.0.1:1/db?sslmod=require"
    with pytest.raises(BadRequest, match="sslmod") as refused:
        async with opened(url):
            pass
    assert "s3cr3t" not in str(refused.value)
