"""The log of a process that stays: pretty on a terminal, JSON lines otherwise, always on stderr.

What is logged may come from strangers, so control characters are shown as escapes; and no token gets into it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import msgspec
import structlog
from structlog.typing import EventDict

from landbridge.core.text import printable, printable_block, redact
from landbridge.errors import BadRequest

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
_LEVEL_NAMES: tuple[Level, ...] = ("debug", "info", "warning", "error")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
#: Seconds until the log tells of the progress of some work, and between two such lines.
TOLD_AFTER, TOLD_EVERY = 2.0, 10.0
#: Fields whose values are never shown.
SECRET = frozenset({"token", "authorization", "password", "secret"})


class LogLevel:
    """From which level on this process logs. It can be changed while the process runs."""

    def __init__(self) -> None:
        self._level: Level = "info"
        #: The level that the process was started with.
        self.at_start: Level = "info"

    def start(self, level: Level) -> None:
        """Log from this level on, from the start."""
        self.at_start = self.level = level

    @property
    def level(self) -> Level:
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level
        # Libraries are logged from warnings on.
        logging.getLogger().setLevel(max(LEVELS[level], logging.WARNING))

    def drop_below(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """A processor: only what is of this level or above goes on."""
        if LEVELS.get(method, logging.CRITICAL) < LEVELS[self._level]:
            raise structlog.DropEvent
        return event


#: Of this process.
log_level = LogLevel()


def configure(level: str) -> None:
    """Log from this level on. Libraries are logged from warnings on."""
    found = next((each for each in _LEVEL_NAMES if each == level), None)
    if found is None:
        raise BadRequest(f"no log level {level!r}", hint=", ".join(LEVELS))
    pretty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            log_level.drop_below,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty, key="time"),
            # Before `harmless`: a traceback may quote a token. Without local variables, which hold some.
            structlog.processors.format_exc_info,
            harmless,
            structlog.dev.ConsoleRenderer(
                timestamp_key="time", pad_event_to=16, exception_formatter=structlog.dev.plain_traceback
            )
            if pretty
            else structlog.processors.JSONRenderer(_to_json),
        ],
        # Everything comes as far as the first processor, which knows the level of now: a cached logger would
        # keep the level of its making.
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], force=True)
    log_level.start(found)


def _to_json(event: dict[str, Any], **options: Any) -> str:
    first = {name: event.pop(name) for name in ("time", "level", "event") if name in event}
    return msgspec.json.encode({**first, **event}, enc_hook=str).decode()


def harmless(logger: Any, method: str, event: EventDict) -> EventDict:
    """A processor: strings without control characters and tokens."""
    for name, value in event.items():
        if name in SECRET:
            event[name] = "[hidden]"
        elif isinstance(value, str):
            event[name] = redact(printable_block(value) if name == "exception" else printable(value))
        elif not isinstance(value, int | float | None):
            event[name] = redact(printable(str(value)))
    return event


class _Forward(logging.Handler):
    """Passes what libraries log on to our log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def take_over(loop: asyncio.AbstractEventLoop) -> Any:
    """Log the errors of tasks that nobody awaits. Returns the log."""
    log = structlog.get_logger("landbridge.cli")

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error(context.get("message") or "unexpected error", exc_info=context.get("exception"))

    loop.set_exception_handler(failed)
    return log


@contextmanager
def progress(work: str) -> Iterator[Callable[[int, int], None]]:
    """Log how far some work is, if it takes long."""
    log = structlog.get_logger("landbridge.up")
    begin = told_at = time.monotonic()
    is_told = False

    def tell(done: int, whole: int) -> None:
        nonlocal told_at, is_told
        now = time.monotonic()
        if now - told_at >= (TOLD_EVERY if is_told else TOLD_AFTER):
            told_at, is_told = now, True
            log.info(work, percent=100 * done // max(1, whole), seconds=round(now - begin))

    yield tell
    if is_told:
        log.info(f"{work}: done", seconds=round(time.monotonic() - begin))


@contextmanager
def warnings_alone() -> Iterator[None]:
    """Log warnings on stderr and nothing else while the block runs: for commands that end."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["warning"]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
