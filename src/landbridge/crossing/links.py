"""Links: which other terminals this one should be linked to, and the dialling. A server links to the other
servers; a client, which nobody can dial, keeps links to two or three servers, so that losing one costs
nothing but a reroute."""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
from typing import TYPE_CHECKING, Any

import structlog

from landbridge.client.context import parse_url
from landbridge.core.trust.directory import TerminalEntry
from landbridge.crossing.peer import Peer
from landbridge.errors import BusError, TerminalUnreachable
from landbridge.protocol import frames
from landbridge.protocol.session import Session

if TYPE_CHECKING:
    from landbridge.crossing.network import Network

log = structlog.get_logger("landbridge.link")

#: Full jitter: a wait between 0 and this, which doubles from here to there, in seconds.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
#: Seconds that a link has to live before its loss is the first one again: two that take each other's place,
#: as of two processes with one terminal's file, would do so for ever, and as fast as they can dial.
STEADY = 2.0
#: Servers that a client keeps links to.
CLIENT_LINKS = 3
#: Servers that a server dials unless it is told which: with more, the bus is still one piece and no hop is
#: far.
SERVER_LINKS = 16
#: Seconds that the one of two servers with the greater id waits for the other one to dial.
AFTER_YOU = 2.0


class Links:
    def __init__(self, network: Network) -> None:
        self._network = network
        #: Terminal id → the task that keeps a link to it.
        self._keeping: dict[str, asyncio.Task[None]] = {}
        #: Terminal id → why it can't be reached, for people.
        self.failures: dict[str, str] = {}
        self._accepted: set[Peer] = set()

    def wanted(self) -> list[TerminalEntry]:
        """Whom to dial."""
        network = self._network
        servers = [
            entry
            for entry in network.directory.terminals
            if entry.mode == "server" and entry.id != network.me and network.knows(entry.id)
        ]
        named = network.settings.neighbours
        if named is not None:
            servers = [entry for entry in servers if entry.id in named or entry.name in named]
        reachable = [entry for entry in servers if network.address_of(entry)]
        most = CLIENT_LINKS if network.mode == "client" else SERVER_LINKS
        # Near ones first, then by chance, but always the same ones: a restart shouldn't move everybody.
        region = network.settings.region
        reachable.sort(key=lambda entry: (entry.region != region, hash_of(network.me, entry.id)))
        return reachable if named is not None else reachable[:most]

    def look(self) -> None:
        """The directory has changed: dial whom we should, leave whom we should not."""
        wanted = [entry.id for entry in self.wanted()]
        for terminal in [terminal for terminal in self._keeping if terminal not in wanted]:
            self._keeping.pop(terminal).cancel()
            self.failures.pop(terminal, None)
        for terminal in wanted:
            if terminal not in self._keeping:
                self._keeping[terminal] = asyncio.ensure_future(self._keep(terminal))

    async def _keep(self, terminal: str) -> None:
        """Dial, and dial again when the link is lost."""
        network = self._network
        backoff = FIRST_BACKOFF
        entry = network.entry(terminal)
        if entry is not None and network.mode == "server" and network.me > terminal:
            await asyncio.sleep(AFTER_YOU)
        while True:
            peer = network.peers.get(terminal)
            if peer is None or peer.closed:
                try:
                    peer = await self._dial(terminal)
                    self.failures.pop(terminal, None)
                except BusError as error:
                    self.failures[terminal] = str(error)
                    await asyncio.sleep(random.uniform(0, backoff) + 0.05)
                    backoff = min(LONGEST_BACKOFF, backoff * 2)
                    continue
            began = asyncio.get_running_loop().time()
            await asyncio.wait([peer.gone])
            if asyncio.get_running_loop().time() - began > STEADY:
                backoff = FIRST_BACKOFF
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(LONGEST_BACKOFF, backoff * 2)

    async def _dial(self, terminal: str) -> Peer:
        network = self._network
        entry = network.entry(terminal)
        if entry is None:
            raise TerminalUnreachable(f"{terminal} is not in the directory")
        url = network.address_of(entry)
        address = parse_url(url)
        tls = network.dialling_tls() if address.tls else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(network.max_handshake):
                options: dict[str, Any] = {"ssl": tls, "server_hostname": address.host} if tls else {}
                _, protocol = await loop.create_connection(
                    lambda: Peer(network, terminal), address.host, address.port, **options
                )
                await protocol.linked
                return protocol
        except TimeoutError:
            raise TerminalUnreachable(f"{entry.name} doesn't answer at {url}") from None
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TerminalUnreachable(f"{entry.name} can't be reached at {url}: {reason}") from None

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        """Somebody who has dialled us turned out to be a terminal."""
        peer = Peer(self._network, None, session)
        self._accepted.add(peer)
        peer.gone.add_done_callback(lambda _: self._accepted.discard(peer))
        transport.set_protocol(peer)
        peer.take_over(transport)
        peer.join(frame)

    async def close(self) -> None:
        tasks = list(self._keeping.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keeping.clear()


def hash_of(*parts: str) -> int:
    """The same in every process, unlike hash()."""
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:8], "big")
