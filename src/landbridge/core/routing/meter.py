"""The meter of one link, at one end: probes and their echoes become a cost.

    cost = (srtt + 2 rttvar) / (1 − loss)² + min(queue, 2000) / 4 + admin        all in milliseconds

Links are TCP, so a packet that the network loses is seen as an echo that comes late: by a retransmission
timer, 200 ms at the least. That is why a late probe counts as a lost one, and why the round trip of a single
one is no measure of the line: it would be counted twice, and swing the deviation by more than the line costs.
Late ones in a row mean a line that has become slower; they draw the average after it, each by no more than
what is late.

A cost that follows every sample would be news to the whole bus every two seconds. What ``cost`` says moves in
steps of 12.5 %, and stays where it is until the measure is a whole step away.
"""

from __future__ import annotations

import math

import msgspec

from landbridge.core.time import SECOND

#: Steps of the reported cost: each is an eighth above the one below.
STEP = 1.125
#: No link is cheaper, in ms: below, the noise of two schedulers is all that is measured.
LEAST = 0.1
#: An echo is late if it takes this much longer than the average, in ms: less than any retransmission timer
#: (200 ms in Linux).
LATE = 150.0
#: The share of one probe in the moving average of losses: about the last 16 count.
_SHARE = 1 / 16
#: Above half, the line is bad enough to be left; the square in the cost would only run away.
LOSS_MOST = 0.5
#: A queue counts, up to the most, once it has been longer than this for so long.
QUEUE_LEAST, QUEUE_MOST, QUEUE_AFTER = 250.0, 2000.0, 5 * SECOND
#: Probes without an answer in a row after which a link is down.
MISSED_MOST = 3
#: Echoes after which a link is judged by what was measured alone. A link that comes back forgets its losses;
#: until they would show again, the long-term plan remembers them.
PRIOR = 16
#: Probes that are remembered for an echo that may still come.
_REMEMBERED = 16


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a cost is made of. Milliseconds, but for the loss."""

    srtt: float  #: smoothed round trip
    rttvar: float  #: its mean deviation
    loss: float  #: share of late or lost probes, 0 to 0.5
    queue: float  #: what waits to be sent, if it counts; else 0
    admin: float  #: set by the operator
    #: What the long-term plan adds or takes away: less with each echo, nothing after PRIOR of them.
    planned: float = 0.0
    total: float  #: the sum, before it is put into steps


def quantised(cost: float) -> float:
    """The nearest step."""
    return float(STEP ** round(math.log(max(cost, LEAST), STEP)))


class Meter:
    def __init__(
        self,
        *,
        admin: float = 0.0,
        busy_every: float = 2.0,
        idle_every: float = 10.0,
        missed_most: int = MISSED_MOST,
    ) -> None:
        """``busy_every``, ``idle_every``: seconds between probes while messages flow, and while none do."""
        self.admin = admin
        #: What the long-term plan says that the link costs, in ms; None: nothing.
        self.prior: float | None = None
        #: Probes in a row that nobody answered in time. Anything that the peer says ends the row.
        self.missed = 0
        self.loss = 0.0
        self.srtt = 0.0  #: ms; 0 until the first echo
        self.rttvar = 0.0  #: ms
        self._busy_every = round(busy_every * SECOND)
        self._idle_every = round(idle_every * SECOND)
        self._missed_most = missed_most
        #: Whether the last echo came late.
        self._was_late = False
        #: Whether there has been an echo: without, there is nothing to tell.
        self._measured = False
        self._echoes = 0
        #: Number → when it was sent, of the probes that wait for their echo, oldest first.
        self._waiting: dict[int, int] = {}
        #: The same, of those that were given up. An echo that comes after all is still a measure.
        self._given_up: dict[int, int] = {}
        self._last_sent: int | None = None
        self._queue = 0.0
        #: Since when the queue is longer than QUEUE_LEAST; None while it isn't.
        self._queue_since: int | None = None
        self._queue_counts = False
        #: What ``cost`` said last, or 0.
        self._told = 0.0

    # -- probes ----------------------------------------------------------------------------------

    def next_probe(self, now: int, busy: bool) -> int:
        """When to send the next one. A link that owes an echo is looked at as if it were busy, so that an
        idle one doesn't take three times ten seconds to be found dead."""
        if self._last_sent is None:
            return now
        hurry = busy or self.missed > 0 or bool(self._waiting) or not self._measured
        return self._last_sent + (self._busy_every if hurry else self._idle_every)

    def sent(self, now: int, number: int) -> None:
        self._waiting[number] = now
        self._last_sent = now

    def echoed(self, now: int, number: int) -> float | None:
        """The round trip in ms; None for an echo that nobody waits for."""
        sent = self._waiting.pop(number, None)
        given_up = sent is None
        if sent is None:
            sent = self._given_up.pop(number, None)
        if sent is None:
            return None
        rtt = max(now - sent, 0) / 1000
        self.missed = 0
        self._echoes += 1
        late_from = self._late_from()
        is_late = rtt > late_from
        if not given_up:
            self._probed(late=is_late)
        if not is_late or self._was_late:
            self._smooth(min(rtt, late_from))
        self._was_late = is_late
        return rtt

    def heard(self) -> None:
        """Something else than an echo came: the peer lives, even if its echoes wait behind other data."""
        self.missed = 0

    def advance(self, now: int) -> None:
        """Give up the probes that were not answered in time."""
        patience = self._patience()
        for number, sent in list(self._waiting.items()):
            if sent + patience > now:
                break
            del self._waiting[number]
            self._given_up[number] = sent
            self.missed += 1
            self._probed(late=True)
        while len(self._given_up) > _REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        self._weigh_queue(now)

    def next_deadline(self) -> int | None:
        """When ``advance`` has something to do."""
        due = [sent + self._patience() for sent in list(self._waiting.values())[:1]]
        if self._queue_since is not None and not self._queue_counts:
            due.append(self._queue_since + QUEUE_AFTER)
        return min(due, default=None)

    @property
    def down(self) -> bool:
        return self.missed >= self._missed_most

    # -- the cost --------------------------------------------------------------------------------

    def queued(self, now: int, queue: float) -> None:
        """What waits to be sent would take ``queue`` ms at the present rate."""
        self._queue = queue
        if queue <= QUEUE_LEAST:
            self._queue_since, self._queue_counts = None, False
        elif self._queue_since is None:
            self._queue_since = now
        self._weigh_queue(now)

    @property
    def parts(self) -> Parts | None:
        """None until the first echo."""
        if not self._measured:
            return None
        queue = min(self._queue, QUEUE_MOST) if self._queue_counts else 0.0
        loss = min(self.loss, LOSS_MOST)
        total = (self.srtt + 2 * self.rttvar) / (1 - loss) ** 2 + queue / 4 + self.admin
        planned = 0.0
        if self.prior is not None and self._echoes < PRIOR:
            planned = (self.prior - total) * (1 - self._echoes / PRIOR)
        return Parts(
            srtt=self.srtt,
            rttvar=self.rttvar,
            loss=loss,
            queue=queue,
            admin=self.admin,
            planned=planned,
            total=total + planned,
        )

    @property
    def quality(self) -> tuple[int, int]:
        """What a link state tells beside the cost: round trip in tenths of a ms, loss in thousandths."""
        return round(self.srtt * 10), round(min(self.loss, LOSS_MOST) * 1000)

    @property
    def cost(self) -> float | None:
        """What to tell others, in ms: a power of STEP. None until the first echo."""
        parts = self.parts
        if parts is None:
            return None
        total = max(parts.total, LEAST)
        if not self._told or not 1 / STEP < total / self._told < STEP:
            self._told = quantised(total)
        return self._told

    def _late_from(self) -> float:
        """The round trip, in ms, above which an echo is late. Nothing is late before there is an average."""
        return self.srtt + max(LATE, 4 * self.rttvar) if self._measured else math.inf

    def _patience(self) -> int:
        """How long an echo may take, in microseconds, before its probe is missed."""
        return max(self._busy_every, round((self.srtt + 4 * self.rttvar) * 1000))

    def _probed(self, *, late: bool) -> None:
        self.loss += (late - self.loss) * _SHARE

    def _smooth(self, rtt: float) -> None:
        # RFC 6298, section 2: the deviation first, from the average before this sample.
        if not self._measured:
            self._measured = True
            self.srtt, self.rttvar = rtt, rtt / 2
            return
        self.rttvar += (abs(self.srtt - rtt) - self.rttvar) / 4
        self.srtt += (rtt - self.srtt) / 8

    def _weigh_queue(self, now: int) -> None:
        self._queue_counts = self._queue_since is not None and now - self._queue_since >= QUEUE_AFTER
