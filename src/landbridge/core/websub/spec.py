"""The options of a feed. Apart from the rest, because clients read them, too."""

from __future__ import annotations

import msgspec


class FeedSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a feed."""

    topic: str
    #: How the terminal's HTTP port is reached from outside, such as https://hub.example; empty: as the
    #: subscriber has reached it.
    base: str = ""
    #: A page whose content becomes messages of the topic when somebody pings the hub; empty: there is none.
    source: str = ""
    #: The header Content-Type; None: the message's own, otherwise application/json.
    content_type: str | None = None
    #: One message at a time to each subscriber, in the order of the topic.
    ordered: bool = False
