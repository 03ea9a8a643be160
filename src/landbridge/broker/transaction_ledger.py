"""Which transactions of clients have happened: what the ledgers of the units say of each producer, as far as
it is in memory, and when it is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.units import Units
from landbridge.core.log import ledger
from landbridge.core.log.ledger import Transactions
from landbridge.core.log.store import LogBounds, Store, Trim
from landbridge.core.time import SECOND
from landbridge.errors import NotOwner
from landbridge.stores.writer import NotLoaded, adding

#: Producers whose transactions are kept in memory.
PRODUCERS = 10_000
#: Microseconds between two looks for clients whose last transaction was long ago, and before the first one.
TRIM_EVERY, TRIM_AFTER = 3600 * SECOND, 60 * SECOND


class LedgerHost(Protocol):
    """What is asked of the broker."""

    store: Store
    clock: Callable[[], int]
    units: Units
    trimmer: Trimmer


class TransactionLedger:
    def __init__(self, broker: LedgerHost) -> None:
        self._broker, self._units = broker, broker.units
        #: What is known of producers' transactions, per unit; the rest is read when they come.
        self._known: OrderedDict[tuple[int, bytes], Transactions] = OrderedDict()
        #: Unit → of transactions that were begun up to here it may be forgotten that they have happened.
        self._forgotten: dict[int, int] = {}
        #: When the ledgers are trimmed next, microseconds.
        self._trim_at = 0
        self._stamp = 0

    def load(self, unit: int, bounds: Mapping[int, LogBounds]) -> None:
        """A unit's logs have these bounds; the log with the unit's own number is its ledger."""
        self._stamp = max([self._stamp, *(each.forgotten for each in bounds.values())])
        self._forgotten[unit] = bounds[unit].forgotten if unit in bounds else 0

    def drop(self, unit: int) -> None:
        """The unit isn't here any more."""
        for key in [key for key in self._known if key[0] == unit]:
            del self._known[key]

    def forgotten(self, unit: int) -> int:
        """Of transactions in a unit that were begun up to this moment it may be forgotten that they have
        happened."""
        return self._forgotten.get(unit, 0)

    def remembers(self, unit: int, producer: bytes, number: int) -> bool:
        """Has a transaction happened, as far as that is in memory?"""
        found = self._known.get((unit, producer))
        return found is not None and found.known(number)

    def stamp(self) -> int:
        """The clock, for producers to be born at: later than the birth of each one that was forgotten, also
        if somebody has set the clock back."""
        self._stamp = max(self._broker.clock(), self._stamp + 1)
        return self._stamp

    def of(self, commit: BrokerCommit, producer: bytes) -> Transactions:
        """The transactions of a producer in a commit's unit, with this commit counted in. NotLoaded where
        they have to be read first."""
        found = commit.transactions.get(producer) or self._known.get((commit.unit, producer))
        if found is None:
            raise NotLoaded(partial(self._load, commit.unit, producer))
        return found

    async def _load(self, unit: int, producer: bytes) -> None:
        raw = await self._broker.store.ledger(unit, producer)
        what = "the ledger's entry of a client's transactions"
        found = ledger.NO_TRANSACTIONS if raw is None else decoded(what, ledger.decode_transactions, raw)
        self.learn(unit, producer, found)

    def learn(self, unit: int, producer: bytes, transactions: Transactions) -> None:
        """This is on disk."""
        self._known[unit, producer] = transactions
        if len(self._known) > PRODUCERS:
            self._known.popitem(last=False)

    def forget(self, producer: bytes) -> None:
        """A client left in good order, with every answer in hand: it will never repeat a transaction. Bytes
        that an earlier connection has sent may still come."""
        for unit in self._units.owned:
            found = self._known.pop((unit, producer), None)
            if found is not None and found.stored:
                self._units.writers[unit].tell(adding([found.left(unit, producer, self._broker.clock())]))

    async def trim(self) -> None:
        """Forget the producers whose last transaction was long ago."""
        before = self._broker.clock() - ledger.KEEP_TRANSACTIONS
        for writer in self._units.writers:

            def work(commit: BrokerCommit) -> None:
                commit.writes.append(Trim(commit.unit, before))
                commit.on_stored.append(lambda: self._trimmed(commit))

            with suppress(NotOwner):  # its new owner trims them
                await writer.put(work)

    def _trimmed(self, commit: BrokerCommit) -> None:
        forgotten = self._forgotten[commit.unit] = commit.trimmed[commit.unit].forgotten
        self._stamp = max(self._stamp, forgotten)
        before = self._broker.clock() - ledger.KEEP_TRANSACTIONS
        for key, found in list(self._known.items()):
            if key[0] == commit.unit and 0 < found.last < before:
                del self._known[key]

    def tick(self) -> None:
        """Once a second."""
        now = self._broker.clock()
        if not self._trim_at:
            self._trim_at = now + TRIM_AFTER
        elif not 0 < self._trim_at - now <= TRIM_EVERY:
            self._trim_at = now + TRIM_EVERY
            self._broker.trimmer.run(self.trim())
