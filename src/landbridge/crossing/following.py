"""Following the directory: the registry is asked for newer versions all the time, and told this terminal's
link state in return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from landbridge.broker.commit import CROSSING, DIRECTORY
from landbridge.client.registry_documents import NewDirectory
from landbridge.core.log.store import PutDocument, Write
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.trust import directory as directories
from landbridge.crossing.ground import Ground
from landbridge.errors import BusError, ShuttingDown, Unauthenticated, Unavailable

log = structlog.get_logger("landbridge.network")

#: Seconds that the registry may keep a question for a newer directory open.
POLL_WAIT = 25.0
#: Seconds after which a registry that didn't answer is asked again: at first, and at most.
REGISTRY_AGAIN, REGISTRY_AGAIN_MOST = 0.5, 15.0
#: Seconds between two link states that are posted to the registry.
POST_EVERY = 1.0


class Follower:
    def __init__(
        self,
        ground: Ground,
        on_update: Callable[[NewDirectory], bool],
        on_registry_up: Callable[[], None],
        held: Callable[[], dict[str, int]],
    ) -> None:
        """``on_update``: takes a directory; False if a newer one is known. ``held``: topic → messages that
        others wait for."""
        self._ground = ground
        self._on_update = on_update
        self._on_registry_up = on_registry_up
        self._held = held
        #: Topics that the registry was asked about, and has answered.
        self._answered: frozenset[str] = frozenset()
        #: Set when a topic is used here that the registry wasn't asked about yet.
        self._interest = asyncio.Event()
        #: The link state to post; None until there is one.
        self._state: SignedLinkState | None = None
        self._state_changed = asyncio.Event()
        #: The topics of ``held`` as the registry was last told.
        self._told = frozenset[str]()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._poll()), asyncio.ensure_future(self._post_states())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the directory -----------------------------------------------------------------------------

    def ask_soon(self) -> None:
        """A topic is used here: does the registry know it?"""
        self._interest.set()

    async def until_known(self, topic: str) -> None:
        """Wait until it is known which groups a topic has, or that the registry has no such topic."""
        ground = self._ground
        while topic not in ground.topics and not (ground.directory.version and topic in self._answered):
            if ground.refusal is not None:
                raise Unauthenticated(
                    f"the registry refuses this terminal: {ground.refusal}",
                    hint="what is published here stays here; was the terminal revoked, or its key rotated?",
                )
            await asyncio.sleep(0.05)

    async def _poll(self) -> None:
        ground, backoff = self._ground, REGISTRY_AGAIN
        #: The registry has answered with an older directory: it was restored from a backup, or is a copy that
        #: lags behind.
        is_behind = False
        while True:
            self._interest.clear()
            ends = ground.log_ends()
            names = frozenset(ends)
            # The registry answers at once unless it was asked about the same topics before. What counts is
            # the version that the topics are from: neighbours tell of newer directories, but not of topics.
            wait = POLL_WAIT if names == self._answered and ground.topics_version else 0.0
            version = ground.topics_version if wait else 0
            if is_behind:  # a registry that is told what is known leaps to a later version
                wait, version = 0.0, max(ground.directory.version, ground.topics_version)
            question = asyncio.ensure_future(ground.registry.directory(version, wait, sorted(names)))
            interest = asyncio.ensure_future(self._interest.wait())
            try:
                await asyncio.wait([question, interest], return_when=asyncio.FIRST_COMPLETED)
                if not question.done():
                    continue
                update = question.result()
            except Unavailable as error:
                if ground.registry_up:
                    # One that is being stopped says so; that of 'landbridge up' is, whenever the terminal is.
                    tell = log.info if isinstance(error, ShuttingDown) else log.warning
                    tell("the registry doesn't answer", detail=str(error))
                ground.registry_up = False
                await asyncio.sleep(backoff)
                backoff = min(REGISTRY_AGAIN_MOST, backoff * 2)
                continue
            except BusError as error:
                ground.registry_up, ground.refusal = False, error
                log.error("the registry refuses", code=error.code, detail=str(error))
                ground.note("refuse", who="registry", cause=error.code, detail=str(error))
                await asyncio.sleep(REGISTRY_AGAIN_MOST)
                continue
            finally:
                interest.cancel()
                question.cancel()
            ground.refusal = None
            if not ground.registry_up:
                ground.registry_up = True
                self._on_registry_up()
            was_behind, is_behind = is_behind, update is not None and not self._take(update)
            if was_behind and update is None:
                continue  # it has caught up, and is asked anew
            if is_behind:
                await asyncio.sleep(backoff)
                backoff = min(REGISTRY_AGAIN_MOST, backoff * 2)
                continue
            backoff, self._answered = REGISTRY_AGAIN, names
            await self._save(update, is_confirmed_anew=ground.confirm(ends))

    def _take(self, update: NewDirectory) -> bool:
        """Returns whether it was taken; if not, the registry has to be asked again."""
        try:
            if self._on_update(update):
                return True
        except BusError as error:
            log.error("a directory can't be used", code=error.code, detail=str(error))
        else:
            log.warning("the registry has answered with an older directory than is known")
        return False

    async def _save(self, update: NewDirectory | None, *, is_confirmed_anew: bool) -> None:
        ground, writes = self._ground, list[Write]()
        if update is not None:
            saved = directories.keep(ground.signed_directory, update.topics)
            writes.append(PutDocument(CROSSING, DIRECTORY, saved))
        if is_confirmed_anew:
            writes.append(PutDocument(CROSSING, "beginnings", ground.beginnings.encode()))
        if writes:
            try:
                await ground.broker.write(writes)
            except BusError as error:  # after a restart the registry is asked for it again
                log.error("the directory can't be stored", code=error.code, detail=str(error))

    # -- link states -------------------------------------------------------------------------------

    def post(self, state: SignedLinkState) -> None:
        """Post a link state soon. The registry is one more neighbour."""
        self._state = state
        self._state_changed.set()

    def look_at_held(self) -> None:
        """Tell the registry if others wait for messages of other topics than it was told."""
        if self._held().keys() != self._told:
            self._state_changed.set()

    async def _post_states(self) -> None:
        while True:
            await self._state_changed.wait()
            self._state_changed.clear()
            if self._state is not None:
                held = self._held()
                self._told = frozenset(held)
                try:
                    await self._ground.registry.post_link_state(self._state, held)
                except BusError as error:
                    log.debug("the link state was not posted", code=error.code, detail=str(error))
            await asyncio.sleep(POST_EVERY)
