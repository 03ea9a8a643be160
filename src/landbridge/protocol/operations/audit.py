"""Operations on the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from landbridge.protocol.operations.common import After, Limit, Next
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class AuditList(Arguments, frozen=True, kw_only=True):
    """Which entries of the audit log to list; what is not given is not asked for."""

    what: Annotated[str | None, about("Of this kind of thing alone: topic, group, service, limit, …")] = None
    name: Annotated[str | None, about("Of the thing of this name alone, as in the entry's 'name'.")] = None
    who: Annotated[str | None, about("Changes by this service alone.")] = None
    operation: Annotated[str | None, about("By this operation alone, such as topic.update.")] = None
    since: Annotated[int | None, about("From this moment on, in microseconds; None: from the oldest.")] = None
    until: Annotated[int | None, about("Up to this moment, in microseconds; None: to the newest.")] = None
    after: After = ""
    limit: Limit = 1000


class AuditRow(Result, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """An entry of the audit log."""

    offset: Annotated[int, about("Where it is in the topic $audit.")]
    time: Annotated[int, about("When, in microseconds.")]
    operation: Annotated[str, about("What was asked for.")]
    what: Annotated[str, about("What kind of thing was changed.")]
    name: Annotated[str, about("Its name.")]
    who: Annotated[str, about("The service whose token was shown.")]
    token: Annotated[str, about("The token's id, or the beginning of a credential's digest.")]
    peer: Annotated[str, about("Where the connection came from; 'memory': from a part of the terminal.")]
    origin: Annotated[str, about("The address of the client that a gateway says it asked for.")]
    program: Annotated[str, about("What the program calls itself.")]
    before: Annotated[Any, about("The values of what has changed; None: there was nothing.")]
    after: Annotated[Any, about("The values that they have since; None: there is nothing any more.")]
    cut: Annotated[list[str], about("Fields whose values were too large to be told whole.")]


class AuditRows(Result, frozen=True, kw_only=True):
    """Some of the entries, the oldest first. There may be a next page where this one has no rows."""

    entries: Annotated[list[AuditRow], about("The entries of this page.")]
    next: Next


# -- the entries ---------------------------------------------------------------------------------------

AUDIT_LIST = operation(
    "audit.list", AuditList, AuditRows, "GET /v1/audit",
    "List who has changed what, from what to what: the entries of the topic $audit.",
    scope="subscribe:$audit",
    where="home",
)  # fmt: skip
