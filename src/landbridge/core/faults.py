"""The errors of services, in one topic: what a report says, and how many of them a service may write.

A report refers to the message that the service failed on and never repeats it: whoever may read errors need
not be allowed to read the messages.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from landbridge.core.time import SECOND

#: The topic of reports. The terminal writes it, in the name of whoever reports.
TOPIC = "$errors"
#: Reports of a service that are written at once, and a second, on average. The others are counted.
BURST, PER_SECOND = 200, 20.0
#: Services whose reports are counted. Of more, the one that was silent for longest begins anew.
MOST_SERVICES = 10_000


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One report, as the payload of a message has it."""

    service: str  #: the subject of the token
    code: str
    status: int = 500
    text: str = ""
    version: str = ""
    endpoint: str = ""
    trace_id: str = ""
    #: The message that it is about.
    topic: str = ""
    offset: int | None = None
    id: str = ""
    time: int = 0  #: microseconds since 1970
    #: Reports of this service that were not written since the last one that was.
    dropped: int = 0


class Allowance:
    """How many reports each service may still write."""

    def __init__(self) -> None:
        #: Service → what is left of its burst, when that was counted, and the reports that were dropped since
        #: the last one that was written.
        self._services: OrderedDict[str, tuple[float, int, int]] = OrderedDict()

    def take(self, service: str, now: int) -> int | None:
        """Count a report. Returns the number of those that were dropped before it, or None: drop it, too."""
        left, at, dropped = self._services.pop(service, (float(BURST), now, 0))
        left = min(float(BURST), left + max(0, now - at) / SECOND * PER_SECOND)
        is_allowed = left >= 1.0
        if is_allowed:
            self._services[service] = left - 1.0, now, 0
        else:
            self._services[service] = left, now, dropped + 1
        if len(self._services) > MOST_SERVICES:
            self._services.popitem(last=False)
        return dropped if is_allowed else None
