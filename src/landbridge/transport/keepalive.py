"""Noticing that the other side is gone without a word: power cut, cable pulled, a firewall that forgot us.
The kernel asks; a connection whose peer doesn't answer is lost like any other."""

from __future__ import annotations

import asyncio
import socket

#: Seconds of silence before the first question, and between two; and how many may go unanswered.
IDLE, INTERVAL, QUESTIONS = 15, 5, 3
#: Milliseconds that sent bytes may go unacknowledged, which the questions don't cover.
UNACKNOWLEDGED = (IDLE + INTERVAL * QUESTIONS) * 1000

#: By name, since not every system has all of them.
_OPTIONS = {
    "TCP_KEEPIDLE": IDLE,
    "TCP_KEEPINTVL": INTERVAL,
    "TCP_KEEPCNT": QUESTIONS,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED,
}


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel watch a TCP connection; nothing for other transports."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
