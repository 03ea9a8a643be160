"""A listener: takes the connections that come to a port, with TLS where there is a certificate.

It takes them itself and not by ``loop.create_server``, which shows a connection to nobody before its TLS
handshake has ended: until then connections would be without number, and would have a minute to be silent.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from landbridge.transport.strangers import Stranger, Strangers, site_of

#: Connections that wait in the kernel until they are taken, and that are taken in one turn of the loop.
BACKLOG, AT_ONCE = 1024, 128
#: Seconds without a look at the port after the system had no file or memory for a connection.
PAUSE = 0.2
#: What bind says of an address that this machine doesn't have, as ::1 for localhost where IPv6 is off.
_ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
#: What accept says if there is no file or memory. All else is of one connection, which is gone.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Bind a port on every address of a host that this machine has. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    failed: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            bound.append(socket.create_server(address, family=family, backlog=BACKLOG))
        except OSError as error:
            failed = error
            if error.errno not in _ABSENT:
                break
    if failed is not None and (failed.errno not in _ABSENT or not bound):
        for one in bound:
            one.close()
        raise failed
    return bound


class Listener:
    """Takes the connections of a bound socket from now on. Each counts as a stranger at once. ``factory``
    gets the stranger and makes the connection's protocol, which has to count the stranger once it has its
    transport. ``within``: seconds for the TLS handshake."""

    def __init__(
        self,
        bound: socket.socket,
        factory: Callable[[Stranger], asyncio.Protocol],
        strangers: Strangers,
        *,
        tls: ssl.SSLContext | None,
        within: float,
    ) -> None:
        self._socket = bound
        self._factory = factory
        self._strangers = strangers
        self._tls = tls
        self._within = within
        self._loop = asyncio.get_running_loop()
        #: Connections that are not their protocol's yet: the TLS handshake is under way.
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Take no more connections, and cut those whose TLS handshake is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for task in list(self._tasks):
            task.cancel()

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue
                # A stranger has to give its file back. If there is none, others will in a while.
                self._strangers.make_room()
                self._loop.remove_reader(self._socket)
                self._timer = self._loop.call_later(PAUSE, self._watch)
                return
            # asyncio does this only for sockets that name their protocol: an answer in two writes would wait
            # 40 ms for the peer's delayed ack.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._open(connection, peer))
            self._tasks.add(task)
            task.add_done_callback(partial(self._opened, connection))

    def _opened(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before it has begun
            connection.close()

    async def _open(self, connection: socket.socket, peer: Any) -> None:
        """Give a connection to its protocol, with TLS after the handshake."""
        task = asyncio.current_task()
        assert task is not None
        stranger = self._strangers.enter(site_of(peer), task.cancel)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._factory(stranger),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._within if self._tls else None,
            )
        except OSError:  # ssl.SSLError is one: the peer has left, speaks no TLS or was silent
            self._strangers.leave(stranger)
            connection.close()
        except BaseException:
            self._strangers.leave(stranger)
            raise
