"""The options of a webhook. Apart from the rest, because clients read them, too."""

from __future__ import annotations

from typing import Any

from landbridge.core.outlet.spec import OutletSpec


class WebhookSpec(OutletSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent where."""

    url: str
    #: The header Content-Type; None: the message's own, otherwise application/json.
    content_type: str | None = None
    #: A query in its canonical form: the messages that its rule chooses from the topic; None: there is none.
    query: dict[str, Any] | None = None
