"""Every error that Landbridge raises, in one place.

    BusError
    ├── Misuse          the caller's fault: change the request
    ├── PeerFault       the other side broke the protocol
    ├── Unavailable     try again later
    ├── ServiceFailed   the service that was asked, not the bus
    └── StoreFailure    the disk under the bus

Each leaf has a stable ``code``, which names the error on the wire and in HTTP problem documents. Beside the
code stand the exit status of the CLI, the status of the HTTP answer, whether the same request may succeed
later, and a hint. The docstring of a leaf says what happened. ``docs/errors.md`` repeats all of it, which a
test checks.
"""

from __future__ import annotations

from typing import Any, ClassVar


class BusError(Exception):
    """A bug. Please report it."""

    #: Stable name of the error on the wire, in HTTP problem documents and in ``--json`` output.
    code: ClassVar[str] = "internal"
    #: Exit status of the CLI. 1 is left to Python's own crashes, 2 to usage errors of the shell.
    exit_status: ClassVar[int] = 70
    #: Status of the HTTP answer, at every HTTP port of the product.
    http_status: ClassVar[int] = 500
    #: Whether the very same request may succeed later.
    retriable: ClassVar[bool] = False
    #: Hint of an error that is raised without one.
    default_hint: ClassVar[str] = ""

    def __init_subclass__(
        cls, *, code: str, exit_status: int, http_status: int, retriable: bool | None = None
    ) -> None:
        cls.code, cls.exit_status, cls.http_status = code, exit_status, http_status
        if retriable is not None:
            cls.retriable = retriable

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """``message`` says what happened, with the numbers; ``hint`` what to do about it."""
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint

    @property
    def details(self) -> dict[str, Any]:
        """What else another process needs to raise the same error; most errors have nothing."""
        return {}


class Misuse(BusError, code="misuse", exit_status=10, http_status=400):
    """The caller's fault: the request has to change before it can succeed."""


class BadRequest(Misuse, code="bad_request", exit_status=10, http_status=400):
    """The arguments make no sense together, or the operation is unknown."""


class BadName(Misuse, code="bad_name", exit_status=11, http_status=400):
    """The name of a topic, group, service or context breaks the naming rules."""

    default_hint = "use letters, digits, '_', '-' in words joined by '.', at most 200 characters"


class BadContext(Misuse, code="bad_context", exit_status=12, http_status=400):
    """The context is missing or unreadable, or its address would send a token in the clear."""

    default_hint = "run 'landbridge context list', or start a terminal with 'landbridge up'"


class BadPayload(Misuse, code="bad_payload", exit_status=13, http_status=400):
    """The payload can't be encoded, or is not what the handler expects."""


class TooLarge(Misuse, code="too_large", exit_status=14, http_status=413):
    """A payload or a frame is above its limit."""

    default_hint = "send it in parts, or raise the limit on the terminal"


class NameTaken(Misuse, code="name_taken", exit_status=15, http_status=409):
    """Another terminal, customer, service or node has that name."""

    default_hint = "choose another name, or rename the one that has it"


class StillHolds(Misuse, code="still_holds", exit_status=16, http_status=409):
    """Terminals hold messages that would be lost by this removal; `force` gives them up."""

    default_hint = "wait until they are delivered, or repeat the request with force=true to give them up"


class ContextTaken(Misuse, code="context_taken", exit_status=17, http_status=409):
    """The context belongs to another terminal, or has credentials that would be lost: it is not replaced."""


class BadBackup(Misuse, code="bad_backup", exit_status=45, http_status=422):
    """The file is no backup, is damaged or incomplete, or was sealed with another passphrase."""

    default_hint = "use another copy of it: nothing was restored"


class BadOption(Misuse, code="bad_option", exit_status=18, http_status=400):
    """An option or a schema of a Spark reader or writer can't be used."""


class JavaMissing(Misuse, code="java_missing", exit_status=19, http_status=400):
    """Spark needs Java, and none was found that Spark can run on."""

    default_hint = "install a JDK 17, 21 or 25 and set JAVA_HOME, or 'pip install landbridge[pipeline]'"


class SparkMissing(Misuse, code="spark_missing", exit_status=36, http_status=400):
    """PySpark, or a package that it needs, is not installed."""

    default_hint = "pip install 'landbridge[pipeline]'"


class JobFailed(Misuse, code="job_failed", exit_status=43, http_status=422):
    """A job failed in its own code or in Spark. The note on the error says where."""

    default_hint = "repair the cause: the job then goes on from its checkpoint"


class BadStatement(Misuse, code="bad_statement", exit_status=39, http_status=400):
    """Spark can't parse, resolve or run the SQL, or the SQL would write. The place is marked."""


class UnknownDocument(Misuse, code="unknown_document", exit_status=71, http_status=404):
    """The collection has no document of that key."""


class DocumentExists(Misuse, code="document_exists", exit_status=72, http_status=409):
    """A document was to be created, and there is one of that key already."""

    default_hint = "update it by its version"


class DocumentChanged(Misuse, code="document_changed", exit_status=73, http_status=412):
    """A document has another version than the caller expected: somebody else has written it."""

    default_hint = "read it again, then decide anew"


class UnknownSchedule(Misuse, code="unknown_schedule", exit_status=86, http_status=404):
    """The topic has no schedule of that name."""

    default_hint = "see 'landbridge schedule list'"


class ScheduleExists(Misuse, code="schedule_exists", exit_status=87, http_status=409):
    """The schedule exists with other options, or is another service's."""

    default_hint = "'landbridge schedule update' changes it"


class UnknownWebhook(Misuse, code="unknown_webhook", exit_status=92, http_status=404):
    """The topic has no webhook of that name."""

    default_hint = "see 'landbridge webhook list'"


class WebhookExists(Misuse, code="webhook_exists", exit_status=93, http_status=409):
    """The webhook exists with other options, or is another service's."""

    default_hint = "'landbridge webhook update' changes it"


class UnknownOutlet(Misuse, code="unknown_outlet", exit_status=110, http_status=404):
    """The topic has no mail or SMS outlet of that name."""

    default_hint = "see 'landbridge mail list' and 'landbridge sms list'"


class OutletExists(Misuse, code="outlet_exists", exit_status=111, http_status=409):
    """The mail or SMS outlet exists with other options, or is another service's."""

    default_hint = "'landbridge mail update' and 'landbridge sms update' change it"


class UnknownFeed(Misuse, code="unknown_feed", exit_status=104, http_status=404):
    """The topic is not open as a feed, or the URL is no feed's."""

    default_hint = "see 'landbridge websub feeds'"


class UnknownSubscription(Misuse, code="unknown_subscription", exit_status=105, http_status=404):
    """The feed has no such subscription."""

    default_hint = "see 'landbridge websub list'"


class UnknownType(Misuse, code="unknown_type", exit_status=98, http_status=404):
    """The topic lists no event type of that name, or no such version of it."""

    default_hint = "see 'landbridge type list'"


class SchemaIncompatible(Misuse, code="schema_incompatible", exit_status=99, http_status=409):
    """The new version of a schema would refuse messages that the version before takes. Nothing was stored."""

    default_hint = "change what is named, give the type another name, or register it with compatibility none"


class InvalidMessage(Misuse, code="invalid_message", exit_status=96, http_status=422):
    """The topic's middleware refuses a message, and with it its batch. Nothing of the batch was stored."""

    def __init__(self, message: str, *, hint: str | None = None, index: int = 0, field: str = "") -> None:
        super().__init__(message, hint=hint)
        #: Which message of the batch that was published, from 0.
        self.index = index
        #: JSON pointer into its payload, or "headers/NAME"; empty: the message as a whole.
        self.field = field

    @property
    def details(self) -> dict[str, Any]:
        """Which message, and what of it."""
        return {"index": self.index, "field": self.field}


class UnknownTopic(Misuse, code="unknown_topic", exit_status=20, http_status=404):
    """The topic does not exist, and the caller may not create it."""

    default_hint = "see 'landbridge topic list', or create it with 'landbridge topic create'"


class UnknownGroup(Misuse, code="unknown_group", exit_status=21, http_status=404):
    """The group does not exist."""

    default_hint = "see 'landbridge group list', or create it with 'landbridge group create'"


class UnknownMessage(Misuse, code="unknown_message", exit_status=35, http_status=404):
    """The terminal has no message with that id, or has it no longer."""

    default_hint = "ask the terminal where the message was published, or one that it was sent to"


class UnknownEvent(Misuse, code="unknown_event", exit_status=78, http_status=404):
    """The caller has triggered no event with that id, or its outcome is no longer kept."""

    default_hint = "an outcome is kept for a day, at the terminal where the event was triggered"


class GroupElsewhere(Misuse, code="group_elsewhere", exit_status=34, http_status=409):
    """The consumers of the group belong at other terminals: this terminal is not in the group."""


class TopicExists(Misuse, code="topic_exists", exit_status=22, http_status=409):
    """The topic exists with other options."""


class ServiceExists(Misuse, code="service_exists", exit_status=79, http_status=409):
    """The service is registered with other options."""

    default_hint = "'landbridge service update' changes it"


class GroupExists(Misuse, code="group_exists", exit_status=23, http_status=409):
    """The group exists with other options."""


class QueueTaken(Misuse, code="queue_taken", exit_status=24, http_status=409):
    """A queue has one producer, one group and one consumer at a time, and the place is taken."""

    default_hint = "a queue has one of each at a time; use kind 'work' to share the messages, or a stream"


class LeaseLost(Misuse, code="lease_lost", exit_status=25, http_status=409):
    """The message was given back to its group, so this consumer can no longer settle it."""

    default_hint = "the handler took longer than ack_within, or the connection was lost"


class TooOld(Misuse, code="too_old", exit_status=44, http_status=409):
    """The terminal no longer knows whether it has stored the batch, by its producer or its key, before."""

    default_hint = "look whether it was stored, and publish it again if it wasn't"


class KeyReused(Misuse, code="key_reused", exit_status=47, http_status=422):
    """The idempotency key was used before, for a request with another body. Nothing was stored."""

    default_hint = "use a fresh key for each new request, and repeat a request with all of its body"


class SequenceGap(Misuse, code="sequence_gap", exit_status=26, http_status=409):
    """A producer's batch came before its predecessor was stored. Clients handle this themselves."""


class OffsetGone(Misuse, code="offset_gone", exit_status=27, http_status=410):
    """Retention has removed that offset."""

    default_hint = "seek to 'earliest'"


class OtherLog(Misuse, code="other_log", exit_status=46, http_status=409):
    """An offset was counted by another log: the topic was made anew, or its terminal restored or changed."""


class AlreadyArchived(Misuse, code="already_archived", exit_status=37, http_status=409):
    """Another query has already archived these offsets of the topic in the lake."""


class UnknownTerminal(Misuse, code="unknown_terminal", exit_status=28, http_status=404):
    """The customer has no such terminal."""

    default_hint = "see 'landbridge terminal list': it may have been removed"


class UnknownCustomer(Misuse, code="unknown_customer", exit_status=29, http_status=404):
    """The registry has no such customer."""


class UnknownService(Misuse, code="unknown_service", exit_status=74, http_status=404):
    """No service of that name is registered."""

    default_hint = "see 'landbridge service list': it may have been removed"


class UnknownNode(Misuse, code="unknown_node", exit_status=108, http_status=404):
    """No node of the terminal has this name."""

    default_hint = "see 'landbridge node list'"


class UnknownPlan(Misuse, code="unknown_plan", exit_status=38, http_status=404):
    """The customer has no long-term plan of its links yet."""

    default_hint = "make one with 'landbridge pipeline run routes'"


class Unauthenticated(Misuse, code="unauthenticated", exit_status=30, http_status=401):
    """The token is missing, wrong, expired or revoked. The answer does not say which."""

    default_hint = (
        "get a token with 'landbridge token create' and put it into the context or token=; "
        "'landbridge service list' says who is suspended"
    )


class Forbidden(Misuse, code="forbidden", exit_status=31, http_status=403):
    """The scopes of the token don't allow the request."""

    default_hint = "ask for a token with the scope that is named"


class TicketExpired(Misuse, code="ticket_expired", exit_status=32, http_status=410):
    """The ticket is past its five minutes, or past the time in which it can be renewed."""

    default_hint = "renew the ticket, if the topic's late_open allows it"


class TicketRefused(Misuse, code="ticket_refused", exit_status=33, http_status=403):
    """The ticket is forged, of another topic or terminal, or its sender or bearer may not use it."""

    default_hint = "is the terminal in a group of the topic, and is neither it nor the sender revoked?"


class PeerFault(BusError, code="peer_fault", exit_status=40, http_status=400):
    """The other side broke the protocol."""


class BadFrame(PeerFault, code="bad_frame", exit_status=40, http_status=400):
    """The other side sent something that is not the protocol."""


class WrongVersion(PeerFault, code="wrong_version", exit_status=41, http_status=502):
    """The two sides speak different versions of the protocol."""

    default_hint = "update the older of the two sides"


class BadSeal(PeerFault, code="bad_seal", exit_status=42, http_status=400):
    """A sealed frame was forged, changed on the way, or is not for this terminal."""

    default_hint = "nothing of the frame was used; the sender repeats a frame that is not acked"


class Unavailable(BusError, code="unavailable", exit_status=50, http_status=503, retriable=True):
    """The request may succeed later."""


class LimitReached(Unavailable, code="limit_reached", exit_status=51, http_status=429):
    """A settable limit is reached: topics, groups, connections, subscriptions."""


class BacklogFull(Unavailable, code="backlog_full", exit_status=52, http_status=503):
    """The slowest group of the topic is as far behind as it may be."""

    default_hint = "let the groups catch up, delete an abandoned group, or raise the topic's max_backlog"


class TopicPaused(Unavailable, code="topic_paused", exit_status=100, http_status=503):
    """An operator has paused the topic: it takes no messages until it is resumed."""

    default_hint = "'landbridge topic show' says why; 'landbridge topic resume' ends it"


class TerminalUnreachable(Unavailable, code="unreachable", exit_status=53, http_status=503):
    """The address can't be connected to, or can't be listened on."""

    default_hint = "is it running? start one with 'landbridge up', or check 'landbridge context show'"


class Disconnected(Unavailable, code="disconnected", exit_status=54, http_status=503):
    """The connection ended before the answer came."""


class ShuttingDown(Unavailable, code="shutting_down", exit_status=55, http_status=503):
    """The terminal or the registry is being stopped."""


class NotOwner(Unavailable, code="not_owner", exit_status=107, http_status=503):
    """Another node of the terminal owns what was asked for, or is about to."""

    default_hint = "ask again: another node answers within seconds"


class TimedOut(Unavailable, code="timed_out", exit_status=56, http_status=504):
    """The answer took longer than the caller allowed."""


class RegistryUnreachable(Unavailable, code="registry_unreachable", exit_status=57, http_status=503):
    """The registry doesn't answer. Messages wait where they are."""

    default_hint = "nothing is lost, stored messages wait; check the registry's address and certificate"


class NoResponder(Unavailable, code="no_responder", exit_status=58, http_status=503):
    """Nobody who is connected here answers requests to this topic."""

    default_hint = (
        "start a service that answers it; a durable request reaches those that start later or elsewhere"
    )


class MiddlewareFailed(BusError, code="middleware_failed", exit_status=97, http_status=500):
    """A stage of the topic's middleware failed, took too long, or lacks its library. Nothing was stored."""

    default_hint = "repair or remove the stage: 'landbridge topic update TOPIC --middleware none'"


class ServiceFailed(BusError, code="service_failed", exit_status=59, http_status=502):
    """The service that was asked has failed. The error carries what the service says of itself."""

    default_hint = "the bus has delivered the request: its answer is the service's own"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        service_code: str = "failed",
        status: int = 500,
        service: str = "",
    ) -> None:
        """``service_code`` and ``status`` are the service's own: a short name, and a number as in HTTP (400
        to 599). ``service``: who failed; the bus fills it in."""
        super().__init__(message, hint=hint)
        self.service_code = service_code
        self.status = status
        self.service = service

    @property
    def details(self) -> dict[str, Any]:
        """What the wire carries beside the code, the text and the hint."""
        return {"service_code": self.service_code, "status": self.status, "service": self.service}


class StoreFailure(BusError, code="store_failure", exit_status=60, http_status=500):
    """The disk under the bus failed."""


class StoreFull(StoreFailure, code="store_full", exit_status=61, http_status=507, retriable=True):
    """There is no room for messages on the disk. Nothing is lost; reading, acks and deletes go on."""

    default_hint = "delete or trim topics, or give the disk more room: publishing then goes on by itself"


class StoreCorrupt(StoreFailure, code="store_corrupt", exit_status=62, http_status=500):
    """A stored batch or document is damaged. Everything else works."""

    default_hint = "the rest stays readable; move the group past it with 'landbridge group seek'"


class StoreTooNew(StoreFailure, code="store_too_new", exit_status=63, http_status=500):
    """The data was written by a newer version of Landbridge."""

    default_hint = "update landbridge, or use another data folder"


class StoreBusy(StoreFailure, code="store_busy", exit_status=64, http_status=503):
    """Another process has the data folder open, or the store on a server."""

    default_hint = "another terminal uses this data folder; stop it or give --data another one"


class Fenced(StoreFailure, code="fenced", exit_status=67, http_status=503, retriable=True):
    """Another process owns this part of the store now. Nothing was written."""

    default_hint = "another process has taken over; ask again, and the new owner answers"


class StoreFailed(StoreFailure, code="store_failed", exit_status=65, http_status=500):
    """The disk, or the store's server, failed in another way. The terminal stops acking until its restart."""

    default_hint = "repair the disk and restart the terminal: everything that was acked is stored"


class LakeDamaged(StoreFailure, code="lake_damaged", exit_status=66, http_status=500):
    """A commit record of a lake is missing or can't be read."""

    default_hint = "nothing was changed; restore the lake's folder _commits"


def _tree(root: type[BusError]) -> dict[str, type[BusError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def catalogue() -> list[type[BusError]]:
    """Return the errors that are raised, without the branches that only gather them, by exit status."""
    kinds = [kind for kind in BY_CODE.values() if kind is BusError or not kind.__subclasses__()]
    return sorted(kinds, key=lambda kind: (kind.exit_status, kind.code))


#: code → class, for turning an error on the wire back into an exception.
BY_CODE: dict[str, type[BusError]] = _tree(BusError)


def from_wire(code: str, message: str, hint: str, details: dict[str, Any] | None = None) -> BusError:
    """Return the exception for an error that another process reported.

    An unknown code, of a newer peer, becomes a plain BusError with the same text."""
    kind = BY_CODE.get(code, BusError)
    if kind is ServiceFailed and details:
        return service_failed(message, hint, details)
    if kind is InvalidMessage and details:
        index, field = details.get("index"), details.get("field")
        return InvalidMessage(
            message,
            hint=hint,
            index=index if isinstance(index, int) else 0,
            field=field if isinstance(field, str) else "",
        )
    return kind(message, hint=hint)


def service_failed(message: str, hint: str | None, details: dict[str, Any]) -> ServiceFailed:
    """Return the failure of a service, from what its ``details`` were; whatever is odd there is left out."""
    code, status, service = (details.get(name) for name in ("service_code", "status", "service"))
    return ServiceFailed(
        message,
        hint=hint,
        service_code=code if isinstance(code, str) and code else "failed",
        status=status if isinstance(status, int) and 400 <= status <= 599 else 500,
        service=service if isinstance(service, str) else "",
    )
