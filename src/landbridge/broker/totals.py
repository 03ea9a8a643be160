"""What a terminal has done since it started."""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct):
    """Since the start, for metrics."""

    published: int = 0
    published_bytes: int = 0
    repeated: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    requeued: int = 0
    buried: int = 0
    refused: int = 0
    #: Operations that a token's scopes did not allow.
    forbidden: int = 0
    requests: int = 0
    replies: int = 0
    late_replies: int = 0
    reports: int = 0
    reports_dropped: int = 0
    #: Batches of the terminal's own that could not be brought to another node.
    untold: int = 0
