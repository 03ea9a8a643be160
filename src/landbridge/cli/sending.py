"""Options and columns of whatever sends messages to URLs: webhooks and feeds."""

from __future__ import annotations

from typing import Any

from landbridge.cli.options import OptionGroup, option
from landbridge.cli.output import columns

ATTEMPTS = columns(
    "Sent=at:moment | Id@cyan | Offset | Attempt=number | Verdict | Status | Took=seconds:span | Answer | "
    "Detail@red"
)


class SendingFlags(OptionGroup):
    """How messages are sent."""

    content_type: str | None = option(
        "The header Content-Type, or 'message' for each message's own.", default="message"
    )
    ordered: bool | None = option(
        "One message at a time, in order; one that fails holds the others.", "--ordered/--unordered"
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        options = self.given("ordered")
        if self.content_type is not None:
            options["content_type"] = None if self.content_type == "message" else self.content_type
        return options
