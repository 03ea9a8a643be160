"""The queue of one client: texts that wait for its socket. Bounded by bytes; a text that many clients get is
one object in all their queues."""

from __future__ import annotations

from collections import deque


class Queue:
    def __init__(self, most: int) -> None:
        #: Bytes that may wait.
        self.most = most
        #: Bytes that wait.
        self.size = 0
        self._texts: deque[bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self._texts)

    def put(self, text: bytes) -> bool:
        """False: there is no room. Then nothing may follow, or the client would miss what is between."""
        if self.size + len(text) > self.most:
            return False
        self._texts.append(text)
        self.size += len(text)
        return True

    def take(self, enough: int) -> list[bytes]:
        """The oldest ones, until they make enough bytes."""
        taken: list[bytes] = []
        size = 0
        while self._texts and size < enough:
            text = self._texts.popleft()
            size += len(text)
            taken.append(text)
        self.size -= size
        return taken
