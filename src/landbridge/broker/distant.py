"""A topic that another node owns, as an output of a transaction or of an event sees it."""

from __future__ import annotations

from landbridge.broker.middleware import Outcome, PublishingSubject
from landbridge.broker.surroundings import Elsewhere
from landbridge.core.log.batch import Batch
from landbridge.errors import BusError


class DistantTopic:
    """Its owner is asked before the commit whether it takes the batch, and its middleware looks at it there.
    The commit then hands the batch over."""

    def __init__(self, name: str, unit: int, elsewhere: Elsewhere) -> None:
        self.name, self.unit = name, unit
        self.chain = DistantChain(name, elsewhere)


class DistantChain:
    def __init__(self, topic: str, elsewhere: Elsewhere) -> None:
        self._topic, self._elsewhere = topic, elsewhere

    async def run(self, batch: Batch, publisher: PublishingSubject) -> Outcome:
        try:
            return await self._elsewhere.prepare(publisher, self._topic, batch)
        except BusError as error:
            return error
