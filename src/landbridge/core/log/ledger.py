"""The ledger: what a producer has already stored, so that a repeated batch is stored once.

A producer numbers its batches 1, 2, 3, … per topic and repeats, in order, what it got no answer for. The
ledger remembers the last number of each producer and where its last batches went, for as long as the log has
the last one of them. The entry is written in the commit that stores the batch, so the two can't disagree
after a crash. Each producer says when it was born, by the terminal's clock, and the log remembers how young
the youngest producer was that it has forgotten: an unknown producer that is younger has stored nothing here,
one that is as old or older may have, and is refused as too old.

A number is never given to another batch, also not the number of a batch that was refused: a refused batch may
have been stored after all (the disk failed and came back, or the refusal was of a repeat). So numbers may
have holes. Each batch says which number of its producer comes before it, and is stored only if that one is
known here: what was sent behind a batch that is refused is refused too, until the producer has heard of it.
"""

from __future__ import annotations

import msgspec

from landbridge.core.log.store import PutLedger
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, LimitReached, SequenceGap

#: How many batches a producer may have unanswered: their offsets are remembered, so that a repeat is answered
#: with the offset that the first try got.
WINDOW = 64


class Entry(msgspec.Struct, array_like=True, frozen=True):
    last: int = 0  #: number of the producer's last stored batch; 0 = none yet
    #: First offsets of the batches with the last WINDOW numbers, the latest last; -1 for a number that was
    #: given up.
    firsts: tuple[int, ...] = ()

    def known(self, sequence: int) -> bool:
        return 0 < sequence <= self.last

    def is_below(self, offset: int) -> bool:
        """Did the producer's last batch stand below this offset?"""
        return bool(self.firsts) and self.firsts[-1] < offset

    def first_of(self, sequence: int) -> int:
        """Where a known batch was stored; -1 where that is longer ago than the window, or the producer has
        given the batch up."""
        back = self.last - sequence
        return self.firsts[-1 - back] if back < len(self.firsts) else -1

    def stored(self, sequence: int, after: int, first: int) -> Entry:
        """The entry after this batch. ``after``: the number of the batch before it; 0: none. SequenceGap when
        that one is not here."""
        if not after <= self.last < sequence:
            raise SequenceGap(
                f"batch {sequence} after {after} of a producer whose last one is {self.last}",
                hint="the one before was refused: send again from there",
            )
        given_up = (-1,) * min(WINDOW, sequence - self.last - 1)
        return Entry(sequence, (*self.firsts, *given_up, first)[-WINDOW:])

    def at(self, first: int) -> Entry:
        """The same, with the last batch's offset known."""
        return Entry(self.last, (*self.firsts[:-1], first))


#: Transactions of one producer that may happen while it has no answer to an earlier one.
MOST_TRANSACTIONS = 1024
#: Microseconds after its last transaction for which a producer is remembered, and after it has left in good
#: order. A transaction that was begun before that and comes again is refused: it may have happened.
KEEP_TRANSACTIONS, KEEP_LEFT = 7 * 86_400 * SECOND, 3600 * SECOND


class Transactions(msgspec.Struct, array_like=True, frozen=True):
    """A producer's transactions. They are numbered too, but several may be under way at once, be repeated in
    any order, and be refused one by one; so it is remembered which of them happened, down to the lowest one
    that the producer may still repeat."""

    floor: int = 1  #: every number below has been answered, and is never repeated
    stored: tuple[int, ...] = ()  #: those at or above the floor that happened
    #: When the last one happened, microseconds; 0: the producer doesn't say when its transactions were begun,
    #: so it is never forgotten.
    last: int = 0

    def known(self, number: int) -> bool:
        return number < self.floor or number in self.stored

    def after(self, number: int, floor: int, last: int) -> Transactions:
        """The entry once this one has happened; ``floor``: the lowest that the producer has no answer for."""
        floor = max(self.floor, min(floor, number))
        stored = (*(n for n in self.stored if n >= floor), number)
        if len(stored) > MOST_TRANSACTIONS:
            raise LimitReached(
                f"{len(stored)} transactions of one client since number {floor}, which it has no answer for;"
                f" allowed are {MOST_TRANSACTIONS}",
                hint="wait for the answers of earlier transactions",
            )
        return Transactions(floor, stored, last)

    def put(self, unit: int, producer: bytes) -> PutLedger:
        """The write that remembers it. A unit's log number 0 (its own number, see ``number_of``) has no
        batches, only this ledger; the moment takes the place of an offset and of a birth there: what was
        begun later than all that was forgotten has not happened."""
        return PutLedger(unit, producer, encode(self), self.last or None, self.last)

    def left(self, unit: int, producer: bytes, now: int) -> PutLedger:
        """The write when the client has left in good order: what it has sent may still be on its way."""
        if not self.last:
            return PutLedger(unit, producer, None)
        until = now - KEEP_TRANSACTIONS + KEEP_LEFT
        return PutLedger(unit, producer, encode(self), min(until, self.last), self.last)


#: What the names of the terminal's own entries begin with: handovers between units, stages, arrivals.
RESERVED = (b"handover/", b"stage/", b"from:")


def check_producer(producer: bytes) -> None:
    """BadRequest for a client that calls itself as the terminal calls its own entries."""
    if producer.startswith(RESERVED):
        raise BadRequest(f"a producer can't be called {producer!r}", hint="use random bytes")


EMPTY = Entry()
NO_TRANSACTIONS = Transactions()
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Entry).decode
decode_transactions = msgspec.msgpack.Decoder(Transactions).decode
