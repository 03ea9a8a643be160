"""A connection to Redis, and nothing between us and it: whoever has to know whether a commit happened can't
use a client that asks again by itself (ADR 40)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import TypeAlias

Argument: TypeAlias = "bytes | memoryview | str | int"
#: What a server answers: text, number, nothing, an error, or several of them.
Reply: TypeAlias = "bytes | int | ErrorReply | list[Reply] | None"

#: Seconds that a connection may take to be made, and a server to answer what is not there to wait.
CONNECT_WITHIN, ANSWER_WITHIN = 5.0, 15.0
#: Bytes that are read ahead.
READ_AHEAD = 1 << 20


class ErrorReply(Exception):
    """An error that the server has answered with. ``code`` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class ConnectionLost(Exception):
    """There is no connection any more, or never was. What was asked may have happened."""


def encode(command: Sequence[Argument]) -> list[bytes | memoryview]:
    """A command as the pieces that go over the wire; large arguments are not copied."""
    pieces: list[bytes | memoryview] = []
    small = bytearray(b"*%d\r\n" % len(command))
    for argument in command:
        if isinstance(argument, int):
            argument = b"%d" % argument
        elif isinstance(argument, str):
            argument = argument.encode()
        size = argument.nbytes if isinstance(argument, memoryview) else len(argument)
        small += b"$%d\r\n" % size
        if size > 4096:
            pieces += [bytes(small), argument]
            small.clear()
        else:
            small += argument
        small += b"\r\n"
    pieces.append(bytes(small))
    return pieces


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """One whole reply. ValueError where it is none, IncompleteReadError where the connection ends."""
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        return ErrorReply(rest.decode(errors="replace"))
    if kind == b":":
        return int(rest)
    if kind == b"$":
        size = int(rest)
        return None if size < 0 else (await reader.readexactly(size + 2))[:-2]
    if kind == b"*":
        count = int(rest)
        return None if count < 0 else [await read_reply(reader) for _ in range(count)]
    raise ValueError(f"a reply of Redis begins with {line[:20]!r}")


class RedisConnection:
    """One connection. Commands of one ``ask`` go together, and the next ``ask`` waits for their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self.is_open = True

    @classmethod
    async def to(
        cls, host: str, port: int, tls: ssl.SSLContext | None, login: Sequence[Sequence[Argument]]
    ) -> RedisConnection:
        """``login``: commands that have to succeed first. ConnectionLost, ErrorReply."""
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=tls, server_hostname=host if tls else None, limit=READ_AHEAD
                )
        except TimeoutError:
            raise ConnectionLost(f"no answer within {CONNECT_WITHIN:.0f} s") from None
        except ssl.SSLError as error:
            raise ConnectionLost(f"TLS failed: {error.reason or error}") from None
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        connection = cls(reader, writer)
        try:
            if login:
                for reply in await connection.ask(*login):
                    if isinstance(reply, ErrorReply):
                        raise reply
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask(self, *commands: Sequence[Argument], within: float = ANSWER_WITHIN) -> list[Reply]:
        """Send commands and wait for all their answers; errors are among them. ConnectionLost where one of
        them doesn't come: then the connection is closed."""
        async with self._turn:
            if not self.is_open:
                raise ConnectionLost("the connection was closed")
            try:
                async with asyncio.timeout(within):
                    for command in commands:
                        self._writer.writelines(encode(command))
                    await self._writer.drain()
                    return [await read_reply(self._reader) for _ in commands]
            except TimeoutError:
                self.close()
                raise ConnectionLost(f"no answer within {within:.0f} s") from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                self.close()
                raise ConnectionLost(_said(error)) from None
            except BaseException:
                self.close()  # an answer that nobody takes would be taken for the next one's
                raise

    async def one(self, *command: Argument, within: float = ANSWER_WITHIN) -> Reply:
        """The answer to one command. Raises the ErrorReply, if it is one."""
        (reply,) = await self.ask(command, within=within)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def close(self) -> None:
        self.is_open = False
        self._writer.close()


def _said(error: Exception) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the server has closed the connection"
    return getattr(error, "strerror", None) or str(error)
