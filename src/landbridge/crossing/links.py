"""Links: the ones that are up, the terminals that this one should be linked to, and the dialling. A server
links to the other servers; a client, which nobody can dial, keeps links to three servers, so that losing one
costs nothing but a reroute."""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
from typing import Any

import structlog

from landbridge.client.context import parse_url
from landbridge.core.trust.directory import TerminalEntry
from landbridge.crossing.ground import Ground
from landbridge.crossing.peer import LinkEvents, Peer
from landbridge.errors import BusError, Disconnected, TerminalUnreachable
from landbridge.protocol import frames
from landbridge.protocol.session import Session

log = structlog.get_logger("landbridge.link")

#: A lost link is dialled again after a random wait between 0 and this many seconds, doubled each time.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
#: Seconds that a link has to live before the wait starts again at FIRST_BACKOFF. Two processes with the same
#: terminal file take each other's place for ever: without this, as fast as they can dial.
STEADY = 2.0
#: Servers that a client keeps links to.
CLIENT_LINKS = 3
#: Servers that a server dials unless the settings name them. That is enough to keep any number of servers
#: connected by short paths.
SERVER_LINKS = 16
#: Seconds that, of two servers, the one with the greater id waits for the other to dial.
AFTER_YOU = 2.0
#: Seconds for the goodbyes on all links when the terminal stops.
CLOSE_WITHIN = 2.0


class Links:
    def __init__(self, ground: Ground, events: LinkEvents) -> None:
        self._ground = ground
        self._events = events
        #: The links that are up, by terminal id.
        self.peers: dict[str, Peer] = {}
        #: Terminal id → the task that keeps a link to it.
        self._keeping: dict[str, asyncio.Task[None]] = {}
        #: Terminal id → why it can't be reached, for people.
        self.failures: dict[str, str] = {}
        #: Every link whose transport isn't gone yet, those that have not proved themselves among them.
        self._open: set[Peer] = set()

    def wanted(self) -> list[TerminalEntry]:
        """The terminals to dial."""
        ground, named = self._ground, self._ground.settings.neighbours
        found = [
            entry
            for entry in ground.directory.terminals
            if entry.mode == "server" and entry.id != ground.me and ground.knows(entry.id)
            if named is None or entry.id in named or entry.name in named
            if ground.address_of(entry)
        ]
        # Those of the region first, then in an order that is random but stays: a restart shouldn't move
        # every link.
        region = ground.settings.region
        found.sort(key=lambda entry: (entry.region != region, hash_of(ground.me, entry.id)))
        most = CLIENT_LINKS if ground.mode == "client" else SERVER_LINKS
        return found if named is not None else found[:most]

    def look(self) -> None:
        """The directory has changed: dial the terminals that are wanted now, and stop dialling the others."""
        wanted = [entry.id for entry in self.wanted()]
        for terminal in [terminal for terminal in self._keeping if terminal not in wanted]:
            self._keeping.pop(terminal).cancel()
            self.failures.pop(terminal, None)
        for terminal in wanted:
            if terminal not in self._keeping:
                self._keeping[terminal] = asyncio.ensure_future(self._keep(terminal))

    async def _keep(self, terminal: str) -> None:
        """Dial, and dial again when the link is lost."""
        loop, backoff = asyncio.get_running_loop(), FIRST_BACKOFF
        if self._ground.mode == "server" and self._ground.me > terminal:
            await asyncio.sleep(AFTER_YOU)
        while True:
            lived = 0.0
            try:
                peer = self.peers.get(terminal)
                if peer is None or peer.closed:
                    peer = await self._dial(terminal)
                    self.failures.pop(terminal, None)
                began_at = loop.time()
                await asyncio.wait([peer.gone])
                lived = loop.time() - began_at
            except BusError as error:
                self.failures[terminal] = str(error)
            if lived > STEADY:
                backoff = FIRST_BACKOFF
            await asyncio.sleep(random.uniform(0, backoff) + 0.05)
            backoff = min(LONGEST_BACKOFF, backoff * 2)

    async def _dial(self, terminal: str) -> Peer:
        ground = self._ground
        entry = ground.entry(terminal)
        if entry is None:
            raise TerminalUnreachable(f"{terminal} is not in the directory")
        url = ground.address_of(entry)
        address = parse_url(url)
        tls = ground.dialling_tls() if address.tls else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ground.max_handshake):
                options: dict[str, Any] = {"ssl": tls, "server_hostname": address.host} if tls else {}
                _, protocol = await loop.create_connection(
                    lambda: Peer(ground, self._events, terminal), address.host, address.port, **options
                )
                self._remember(protocol)
                try:
                    await protocol.linked
                except asyncio.CancelledError:  # out of time, or the terminal isn't wanted any more
                    protocol.close(Disconnected("the dialling was given up"))
                    raise
                return protocol
        except TimeoutError:
            raise TerminalUnreachable(f"{entry.name} doesn't answer at {url}") from None
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TerminalUnreachable(f"{entry.name} can't be reached at {url}: {reason}") from None

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        """Another terminal has dialled: the connection is a link from here on."""
        peer = Peer(self._ground, self._events, None, session)
        self._remember(peer)
        transport.set_protocol(peer)
        peer.take_over(transport)
        peer.join(frame)

    def _remember(self, peer: Peer) -> None:
        self._open.add(peer)
        peer.gone.add_done_callback(lambda _: self._open.discard(peer))

    async def stop_dialling(self) -> None:
        tasks = list(self._keeping.values())
        self._keeping.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Say goodbye on every link, also on those where the handshake is still under way."""
        peers = list(self._open)
        for peer in peers:
            peer.close(Disconnected("the terminal is shutting down"))
        if peers:
            await asyncio.wait([peer.gone for peer in peers], timeout=CLOSE_WITHIN)


def hash_of(*parts: str) -> int:
    """The same in every process, unlike hash()."""
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:8], "big")
