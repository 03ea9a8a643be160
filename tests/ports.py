"""Ports for processes that have to be told theirs: they are started again, or others dial them."""

from __future__ import annotations

import random
import socket

#: Below those that systems give to whoever asks for any (Linux from 32768 on, others from 49152): one of
#: those could become the near end of somebody's connection before its process has started.
FIRST, END = 10_000, 32_000

#: Those of this process, each given once; others that run beside it meet the same one hardly ever.
_given: set[int] = set()
_dice = random.SystemRandom()


def free_port() -> int:
    while True:
        port = _dice.randrange(FIRST, END)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
