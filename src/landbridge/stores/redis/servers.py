"""The servers of a store: which of them has a unit, how many replicas it has, and whether its settings let it
keep what it says it has."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from landbridge.core.store_address import StoreAddress
from landbridge.errors import BusError, StoreFailed
from landbridge.stores.redis.resp import Argument, ConnectionLost, ErrorReply, RedisConnection, Reply

PORT = 6379
SLOTS = 16384
#: The oldest version that has WAITAOF. Valkey says which Redis it is like.
LEAST = (7, 2)
#: What has to be set, and what it has to be.
SETTINGS = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
#: Answers that a server gives for a while: it starts, is being replaced, or is busy with a long function.
PASSING = frozenset(
    (
        "LOADING",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MASTERDOWN",
        "READONLY",
        "MOVED",
        "ASK",
        "BUSY",
        "MISCONF",
        "UNBLOCKED",
        "NOREPLICAS",
    )
)
#: What a server says, without a code of its own, where it has no connection left at the moment.
NO_CONNECTION = "ERR max number of clients"
#: What a user of an ACL needs, beside the keys of the store.
RIGHTS = (
    "+@read +@write +@keyspace +@connection +@scripting +info +config|get +wait +waitaof +cluster|nodes "
    "+client|list"
)
LOGIN = "name the user in the URL; put the password into LANDBRIDGE_STORE or a file: --store @FILE"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A server that takes writes, and how many replicas copy it."""

    host: str
    port: int
    replicas: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Bytes of data that a server has, and how many it may have; 0: as many as there are."""

    used: int
    most: int


class Passing(Exception):
    """The servers can't do it at the moment; asking again later may help."""


def slot_of(key: str) -> int:
    """The slot of a key in a cluster: what stands in its braces decides."""
    begin = key.find("{")
    end = key.find("}", begin + 1)
    hashed = key[begin + 1 : end] if 0 <= begin < end - 1 else key
    crc = 0
    for byte in hashed.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021) & 0xFFFF if crc & 0x8000 else (crc << 1) & 0xFFFF
    return crc % SLOTS


def info_of(reply: Reply) -> dict[str, str]:
    """The answer to INFO."""
    assert isinstance(reply, bytes)
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines if value}


def problem_of(info: Mapping[str, str], settings: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with a server, and what to do; None where all is well."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < LEAST:
        what = (
            f"is Redis {version}, which has no WAITAOF: nobody could say when a replica has a commit on disk"
        )
        return what, "run Redis 7.2 or newer, or Valkey 8 or newer"
    for name, wanted in SETTINGS.items():
        if settings.get(name) != wanted:
            what = f"has {name} {settings.get(name, 'unset')}, and would lose or drop what was acked"
            return (
                what,
                f"CONFIG SET {name} {wanted}, and write '{name} {wanted}' into its configuration file",
            )
    return None


def shards_of(nodes: str, asked: str) -> dict[int, RedisServer]:
    """From the answer to CLUSTER NODES: slot -> its server. A replica that has failed counts, for it may come
    back and be promoted. ``asked``: the host that has answered, which may not know its own address."""
    primaries: dict[str, tuple[str, int, list[str]]] = {}
    replicas: dict[str, int] = {}
    for line in nodes.splitlines():
        name, address, flags, primary, *rest = line.split()
        marks = set(flags.split(","))
        if marks & {"noaddr", "handshake"}:
            continue
        if marks & {"slave", "replica"}:
            replicas[primary] = replicas.get(primary, 0) + 1
        elif "fail" not in marks:
            host, _, port = address.partition("@")[0].rpartition(":")
            named = address.split(",")[1] if "," in address else ""
            primaries[name] = named or host or asked, int(port), rest[4:]
    found: dict[int, RedisServer] = {}
    for name, (host, number, slots) in primaries.items():
        server = RedisServer(host, number, replicas.get(name, 0))
        for stretch in slots:
            if not stretch.startswith("["):
                first, _, last = stretch.partition("-")
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), server))
    return found


class RedisServers:
    """Finds the server of a unit, and makes connections."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.is_cluster = False
        self._tls = _tls(address)
        self._seeds = [(host, port or PORT) for host, port in address.hosts] or [("127.0.0.1", PORT)]
        #: Slot -> its server; of a single server, slot 0 alone.
        self._shards: dict[int, RedisServer] = {}

    @property
    def all(self) -> list[RedisServer]:
        return sorted(set(self._shards.values()), key=str)

    def of(self, key: str) -> RedisServer:
        """The server that has a key. Passing where none has."""
        found = self._shards.get(slot_of(key) if self.is_cluster else 0)
        if found is None:
            raise Passing("no server of the cluster has its slots")
        return found

    async def refresh(self) -> None:
        """Look for the servers anew. Passing where no server can say, StoreFailed where it never will."""
        known = [(server.host, server.port) for server in self.all]
        failures: list[str] = []
        for host, port in dict.fromkeys((*self._seeds, *known)):
            try:
                connection = await self.connect(host, port)
                try:
                    await self.learn(connection, host, port)
                    return
                finally:
                    connection.close()
            except (Passing, ConnectionLost) as failure:
                failures.append(f"{host}:{port}: {failure}")
        raise Passing("; ".join(failures))

    async def learn(self, connection: RedisConnection, host: str, port: int) -> None:
        """What the server at this place says of the servers."""
        info = info_of(await _passing(connection.one("INFO", "everything")))
        self.is_cluster = info.get("cluster_enabled") == "1"
        wanted = self.address.replicas
        if not self.is_cluster:
            if info.get("role") != "master":
                raise Passing("it is a replica, which takes no writes")
            count = int(info.get("connected_slaves", 0))
            # A replica that is gone for a while counts: it may come back and be promoted.
            before = max((server.replicas for server in self.all), default=0)
            self._shards = {0: RedisServer(host, port, max(count, before) if wanted is None else wanted)}
            return
        nodes = await _passing(connection.one("CLUSTER", "NODES"))
        assert isinstance(nodes, bytes)
        shards = shards_of(nodes.decode(), host)
        if wanted is not None:
            shards = {slot: RedisServer(each.host, each.port, wanted) for slot, each in shards.items()}
        self._shards = shards

    async def connect(self, host: str, port: int) -> RedisConnection:
        """ConnectionLost or Passing where another attempt may succeed, StoreFailed where none will."""
        address = self.address
        login: list[list[Argument]] = []
        if address.user or address.password:
            login.append(["AUTH", address.user or "default", address.password])
        if address.database not in ("", "0"):
            login.append(["SELECT", address.database])
        try:
            return await RedisConnection.to(host, port, self._tls, login)
        except ErrorReply as error:
            if passes(error):
                raise Passing(str(error)) from None
            raise StoreFailed(f"{host}:{port} has refused the login: {error}", hint=LOGIN) from None

    async def check(self, connection: RedisConnection, server: RedisServer) -> ServerMemory:
        """StoreFailed where the server would not keep what it answers, with the setting to change."""
        info_reply, settings_reply = await connection.ask(["INFO"], ["CONFIG", "GET", *SETTINGS])
        for reply in (info_reply, settings_reply):
            if isinstance(reply, ErrorReply):
                raise _refused(reply, server)
        assert isinstance(settings_reply, list)
        texts = [each.decode() for each in settings_reply if isinstance(each, bytes)]
        info = info_of(info_reply)
        problem = problem_of(info, dict(zip(texts[::2], texts[1::2], strict=True)))
        if problem is not None:
            raise StoreFailed(f"{server} {problem[0]}", hint=problem[1])
        return ServerMemory(int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))


def passes(error: ErrorReply) -> bool:
    """Does the server give this answer for a while only?"""
    return error.code in PASSING or str(error).startswith(NO_CONNECTION)


async def _passing(asked: Awaitable[Reply]) -> Reply:
    try:
        return await asked
    except ErrorReply as error:
        raise _refused(error, None) from None


def _refused(error: ErrorReply, server: RedisServer | None) -> BusError | Passing:
    who = "the server" if server is None else str(server)
    if passes(error):
        return Passing(str(error))
    if error.code == "NOAUTH":
        return StoreFailed(f"{who} wants a login", hint=LOGIN)
    if error.code == "NOPERM":
        hint = f"ACL SETUSER … ~{{NAME:* {RIGHTS}, with the name of the store"
        return StoreFailed(f"{who} doesn't let the user do what a store needs: {error}", hint=hint)
    return StoreFailed(f"{who} has refused a command: {error}", hint="is it Redis 7.2, Valkey 8, or newer?")


def _tls(address: StoreAddress) -> ssl.SSLContext | None:
    if address.scheme != "rediss":
        return None
    try:
        return ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise StoreFailed(f"the certificates in {address.ca} can't be read: {error}") from None
