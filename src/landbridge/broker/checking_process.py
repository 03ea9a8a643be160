"""Checks that may take long, which a process of their own makes (``checking_main.py``).

The process is started when the first such check is asked for, and again after it was ended. Whoever asks does
so in a thread that topics share evenly, one check at a time. The event loop goes on meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, BinaryIO, NoReturn, TypeVar

import msgspec

from landbridge.broker.checking_main import (
    MOST_SECONDS,
    CheckAsked,
    CheckVerdict,
    RegistrationAsked,
    TypeRegistered,
    read_message,
    write_message,
)
from landbridge.broker.fair_thread import FairThread
from landbridge.core.middleware.event_types import EventType, TypeRegistration
from landbridge.core.middleware.validate import Misfit
from landbridge.errors import BadRequest, MiddlewareFailed, ShuttingDown, from_wire

T = TypeVar("T")

#: Seconds that a process may take to end when it answers no more.
ENDS_WITHIN = 5.0
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from landbridge.broker.checking_main import main; main(int(sys.argv[2]))"
)
_encode = msgspec.msgpack.Encoder().encode
_verdict = msgspec.msgpack.Decoder(CheckVerdict).decode
_registered = msgspec.msgpack.Decoder(TypeRegistered).decode


class EndedByKernel(Exception):
    """The process has used up the time for a check."""


class CheckingProcess:
    """The process, and whose turn it is."""

    def __init__(self, seconds: int = MOST_SECONDS) -> None:
        #: Of the processor, for one check.
        self._seconds = seconds
        self._thread = FairThread("landbridge-checks")
        self._process: subprocess.Popen[bytes] | None = None
        #: Held while the process is started or ended.
        self._lock = Lock()
        self._is_closed = False

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """Do something that asks the process, in the thread, when it is this user's turn."""
        return await self._thread.run(user, work)

    async def register(self, user: str, known: EventType | None, wanted: TypeRegistration) -> EventType:
        """``event_types.register``, there."""
        return await self.run(user, lambda: self._register(known, wanted))

    def _register(self, known: EventType | None, wanted: TypeRegistration) -> EventType:
        requests, answers = self._streams()
        self._send(requests, _encode(RegistrationAsked(known, wanted)))
        try:
            found = _registered(self._answer(answers))
        except EndedByKernel:
            raise BadRequest(
                f"the schema takes more than {self._seconds} s to compile and to compare",
                hint="use fewer and simpler alternatives and patterns",
            ) from None
        if found.type is None:
            code, message, hint = found.error
            raise from_wire(code, message, hint)
        return found.type

    def first_misfit(self, schema: bytes, payloads: list[bytes]) -> Misfit | None:
        """The first of these payloads that doesn't fit a schema. In the thread."""
        requests, answers = self._streams()
        self._send(requests, _encode(CheckAsked(schema, payloads)))
        for at in range(len(payloads)):
            try:
                verdict = _verdict(self._answer(answers))
            except EndedByKernel:
                reason = f"its check takes more than {self._seconds} s"
                return Misfit(at, "", reason, "make the message smaller, or its schema simpler")
            if not verdict.fits:
                hint = "" if verdict.is_json else "send JSON, in UTF-8"
                return Misfit(at, verdict.field, verdict.reason, hint)
        return None

    def _send(self, requests: BinaryIO, raw: bytes) -> None:
        try:
            write_message(requests, raw)
        except OSError:  # it was ended since the last request
            self._fail()

    def _answer(self, answers: BinaryIO) -> bytes:
        raw = read_message(answers)
        if not raw:
            self._fail()
        return raw

    def _fail(self) -> NoReturn:
        """The process is gone."""
        with self._lock:
            process, self._process = self._process, None
        status = _end(process) if process is not None else 0
        if self._is_closed:
            raise ShuttingDown("the terminal is shutting down")
        if status == -getattr(signal, "SIGXCPU", 0):
            raise EndedByKernel
        raise MiddlewareFailed(
            f"the process that checks messages has ended with status {status}",
            hint="try again; if the kernel has ended it for want of memory, give the machine more",
        )

    def _streams(self) -> tuple[BinaryIO, BinaryIO]:
        with self._lock:
            if self._is_closed:
                raise ShuttingDown("the terminal is shutting down")
            if self._process is not None and self._process.poll() is not None:
                _end(self._process)
                self._process = None
            if self._process is None:
                self._process = _start(self._seconds)
            stdin: Any = self._process.stdin
            stdout: Any = self._process.stdout
            return stdin, stdout

    def close(self) -> None:
        """End the process, also in the middle of a check."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()
            _end(process)
        self._thread.close()


def _start(seconds: int) -> subprocess.Popen[bytes]:
    # Not by multiprocessing: it would import the program of whoever embeds a terminal once more.
    command = [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), str(seconds)]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise MiddlewareFailed(f"the process that checks messages can't be started: {error}") from None


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its exit status."""
    try:
        status = process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:  # it has only closed its streams
        process.kill()
        status = process.wait()
    for stream in (process.stdin, process.stdout):
        try:
            if stream is not None:
                stream.close()
        except OSError:
            pass
    return status
