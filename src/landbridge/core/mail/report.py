"""What a report on a mail says (RFC 3464): that it was not delivered, and why."""

from __future__ import annotations

import email
from email.message import Message as Mail
from typing import NamedTuple

from landbridge.core.templates import one_line

#: Parts that are looked at, and characters of a cause.
MOST_LOOKED_AT, LONGEST_CAUSE = 20, 250


class MailReport(NamedTuple):
    """What became of a mail."""

    #: As the report has it: "failed", "delayed", "delivered", "relayed" or "expanded".
    action: str
    cause: str


def read_report(mail: bytes) -> MailReport | None:
    """What a mail reports; None: it is no report, perhaps an answer by a machine."""
    parsed = email.message_from_bytes(mail)
    if parsed.get_content_type() != "multipart/report":
        return None
    parts = parsed.get_payload()
    if not isinstance(parts, list):
        return None
    for part in parts[:MOST_LOOKED_AT]:
        if isinstance(part, Mail) and part.get_content_type() == "message/delivery-status":
            return _status_of(part)
    return None


def _status_of(part: Mail) -> MailReport | None:
    """The worst that it says of a recipient. Its blocks are of the mail, and of each recipient."""
    blocks = part.get_payload()
    if not isinstance(blocks, list):
        return None
    found: MailReport | None = None
    for block in blocks[:MOST_LOOKED_AT]:
        if not isinstance(block, Mail) or not (action := str(block.get("action", "")).strip().lower()):
            continue
        said = [block.get("final-recipient"), block.get("status"), block.get("diagnostic-code")]
        cause = one_line(" ".join(str(each) for each in said if each), LONGEST_CAUSE)
        report = MailReport(one_line(action, 20), cause)
        if action == "failed":
            return report
        found = found or report
    return found
