"""Every error that Landbridge raises, in one place.

    BusError
    ├── Misuse                 the caller's fault: change the request
    │   ├── BadRequest         bad_request        malformed arguments
    │   ├── BadName            bad_name           a name that breaks the naming rules
    │   ├── BadContext         bad_context        no such context, or an unreadable one
    │   ├── ContextTaken       context_taken      the context is another terminal's
    │   ├── BadOption          bad_option         an option of a Spark reader or writer that can't be used
    │   ├── JavaMissing        java_missing       no Java that Spark could run on
    │   ├── SparkMissing       spark_missing      PySpark, or what it needs, is not installed
    │   ├── BadStatement       bad_statement      SQL that can't be run, or that would write
    │   ├── JobFailed          job_failed         a job's own code, or Spark, has failed
    │   ├── BadPayload         bad_payload        a payload that can't be encoded or decoded
    │   ├── TooLarge           too_large          payload or frame above its limit
    │   ├── UnknownTopic       unknown_topic
    │   ├── UnknownMessage     unknown_message    no message of that id here
    │   ├── GroupElsewhere     group_elsewhere    the group's consumers are at other terminals
    │   ├── UnknownGroup       unknown_group
    │   ├── TopicExists        topic_exists       the topic is there with other options
    │   ├── GroupExists        group_exists       the group is there with other options
    │   ├── Unauthenticated    unauthenticated    no, wrong, expired or revoked token
    │   ├── Forbidden          forbidden          the token's scopes don't allow it
    │   ├── TicketExpired      ticket_expired     a ticket past its five minutes, or past renewing
    │   ├── TicketRefused      ticket_refused     a ticket that is forged, or not for who shows it
    │   ├── QueueTaken         queue_taken        a queue has one producer, one group, one consumer
    │   ├── LeaseLost          lease_lost         the message is no longer this consumer's to settle
    │   ├── SequenceGap        sequence_gap       a producer's batch came before its predecessor
    │   ├── OffsetGone         offset_gone        the offset is below what retention kept
    │   ├── AlreadyArchived    already_archived   the lake has these offsets of the topic, by another query
    │   ├── UnknownTerminal    unknown_terminal   no such terminal of this customer
    │   ├── UnknownCustomer    unknown_customer
    │   ├── UnknownPlan        unknown_plan       nobody has made a long-term plan of the links yet
    │   ├── NameTaken          name_taken         another terminal or customer has that name
    │   └── StillHolds         still_holds        what is to be removed has messages that somebody waits for
    ├── PeerFault              the other side broke the protocol
    │   ├── BadFrame           bad_frame
    │   ├── WrongVersion       wrong_version
    │   └── BadSeal            bad_seal           a sealed frame that is forged, changed or not for us
    ├── Unavailable            try again later
    │   ├── LimitReached       limit_reached      a settable limit (the 429 of this bus)
    │   ├── BacklogFull        backlog_full       a topic holds as much unsettled as it may
    │   ├── TerminalUnreachable unreachable       nobody answers at that address
    │   ├── RegistryUnreachable registry_unreachable  the registry doesn't answer
    │   ├── Disconnected       disconnected       the connection ended before the answer came
    │   ├── ShuttingDown       shutting_down
    │   └── TimedOut           timed_out
    └── StoreFailure           the disk under the bus
        ├── StoreFull          store_full         no room: nothing is acked, reading goes on
        ├── StoreCorrupt       store_corrupt      a stored batch or page fails its check
        ├── StoreTooNew        store_too_new      written by a newer Landbridge
        ├── LakeDamaged        lake_damaged       a commit record of a lake is missing or can't be read
        ├── StoreBusy          store_busy         another process has it open
        └── StoreFailed        store_failed       any other I/O error; restart after mending

``code`` is stable: it is what travels on the wire, what HTTP problem documents name, what
``docs/errors.md`` explains and what decides the exit status of the CLI.
"""

from __future__ import annotations

from typing import ClassVar


class BusError(Exception):
    """The root. ``str(error)`` says what happened, ``error.hint`` what to do about it."""

    code: ClassVar[str] = "internal"
    #: May the very same request succeed later?
    retriable: ClassVar[bool] = False
    #: What the CLI exits with. 1 is left to Python's own crashes, 2 to usage errors of the shell.
    exit_status: ClassVar[int] = 70
    #: The hint where the place that raises gives none.
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint


class Misuse(BusError):
    code = "misuse"
    exit_status = 10


class BadRequest(Misuse):
    code = "bad_request"
    exit_status = 10


class BadName(Misuse):
    code = "bad_name"
    exit_status = 11
    default_hint = "use letters, digits, '_', '-' in words joined by '.', at most 200 characters"


class BadContext(Misuse):
    code = "bad_context"
    exit_status = 12
    default_hint = "run 'landbridge context list', or start a terminal with 'landbridge up'"


class ContextTaken(Misuse):
    code = "context_taken"
    exit_status = 17


class BadOption(Misuse):
    code = "bad_option"
    exit_status = 18


class JavaMissing(Misuse):
    code = "java_missing"
    exit_status = 19
    default_hint = "install a JDK 17, 21 or 25 and set JAVA_HOME, or 'pip install landbridge[pipeline]'"


class SparkMissing(Misuse):
    code = "spark_missing"
    exit_status = 36
    default_hint = "pip install 'landbridge[pipeline]'"


class BadStatement(Misuse):
    code = "bad_statement"
    exit_status = 39


class JobFailed(Misuse):
    code = "job_failed"
    exit_status = 43
    default_hint = "the job goes on from its checkpoint once that is mended"


class BadPayload(Misuse):
    code = "bad_payload"
    exit_status = 13


class TooLarge(Misuse):
    code = "too_large"
    exit_status = 14
    default_hint = "send it in parts, or raise the limit on the terminal"


class UnknownTopic(Misuse):
    code = "unknown_topic"
    exit_status = 20
    default_hint = "see 'landbridge topic list', or create it with 'landbridge topic create'"


class UnknownGroup(Misuse):
    code = "unknown_group"
    exit_status = 21
    default_hint = "see 'landbridge group list', or create it with 'landbridge group create'"


class UnknownMessage(Misuse):
    code = "unknown_message"
    exit_status = 35
    default_hint = "ask the terminal where it was published, or one that it was for"


class GroupElsewhere(Misuse):
    code = "group_elsewhere"
    exit_status = 34


class TopicExists(Misuse):
    code = "topic_exists"
    exit_status = 22


class GroupExists(Misuse):
    code = "group_exists"
    exit_status = 23


class Unauthenticated(Misuse):
    code = "unauthenticated"
    exit_status = 30
    default_hint = "get a token with 'landbridge token create' and put it into the context or token="


class Forbidden(Misuse):
    code = "forbidden"
    exit_status = 31
    default_hint = "ask for a token with the scope that is named"


class TicketExpired(Misuse):
    code = "ticket_expired"
    exit_status = 32
    default_hint = "renew the ticket, if the topic's late_open allows it"


class TicketRefused(Misuse):
    code = "ticket_refused"
    exit_status = 33
    default_hint = "is the terminal in a group of the topic, and are it and the sender not revoked?"


class QueueTaken(Misuse):
    code = "queue_taken"
    exit_status = 24
    default_hint = "a queue has one producer, one group and one consumer at a time; use a stream for more"


class LeaseLost(Misuse):
    code = "lease_lost"
    exit_status = 25
    default_hint = "it took longer than ack_within, or the connection was lost: the message was given back"


class SequenceGap(Misuse):
    code = "sequence_gap"
    exit_status = 26


class OffsetGone(Misuse):
    code = "offset_gone"
    exit_status = 27
    default_hint = "retention has removed it; seek to 'earliest'"


class AlreadyArchived(Misuse):
    code = "already_archived"
    exit_status = 37


class UnknownTerminal(Misuse):
    code = "unknown_terminal"
    exit_status = 28
    default_hint = "list the customer's terminals: it may have been removed"


class UnknownCustomer(Misuse):
    code = "unknown_customer"
    exit_status = 29


class UnknownPlan(Misuse):
    code = "unknown_plan"
    exit_status = 38
    default_hint = "make one with 'landbridge pipeline run routes'"


class NameTaken(Misuse):
    code = "name_taken"
    exit_status = 15
    default_hint = "choose another name, or change what has it"


class StillHolds(Misuse):
    code = "still_holds"
    exit_status = 16
    default_hint = "let them be delivered first, or repeat it with force=true to give them up"


class PeerFault(BusError):
    code = "peer_fault"
    exit_status = 40


class BadFrame(PeerFault):
    code = "bad_frame"
    exit_status = 40


class WrongVersion(PeerFault):
    code = "wrong_version"
    exit_status = 41
    default_hint = "update the older of the two sides"


class BadSeal(PeerFault):
    code = "bad_seal"
    exit_status = 42
    default_hint = "nothing of it was used; the sender sends again what it gets no ack for"


class Unavailable(BusError):
    code = "unavailable"
    retriable = True
    exit_status = 50


class LimitReached(Unavailable):
    code = "limit_reached"
    exit_status = 51


class BacklogFull(Unavailable):
    code = "backlog_full"
    exit_status = 52
    default_hint = "let the groups catch up, delete an abandoned group, or raise the topic's max_backlog"


class TerminalUnreachable(Unavailable):
    code = "unreachable"
    exit_status = 53
    default_hint = "is it running? start one with 'landbridge up', or check 'landbridge context show'"


class RegistryUnreachable(Unavailable):
    code = "registry_unreachable"
    exit_status = 57
    default_hint = "nothing is lost, what is stored waits; check the registry's address and certificate"


class Disconnected(Unavailable):
    code = "disconnected"
    exit_status = 54


class ShuttingDown(Unavailable):
    code = "shutting_down"
    exit_status = 55


class TimedOut(Unavailable):
    code = "timed_out"
    exit_status = 56


class StoreFailure(BusError):
    code = "store_failure"
    exit_status = 60


class StoreFull(StoreFailure):
    code = "store_full"
    retriable = True
    exit_status = 61
    default_hint = "make room on the disk: nothing was lost, and publishing goes on as soon as there is some"


class StoreCorrupt(StoreFailure):
    code = "store_corrupt"
    exit_status = 62
    default_hint = "the rest stays readable; move the group past it with 'landbridge group seek'"


class StoreTooNew(StoreFailure):
    code = "store_too_new"
    exit_status = 63
    default_hint = "update landbridge, or use another data folder"


class LakeDamaged(StoreFailure):
    code = "lake_damaged"
    exit_status = 66
    default_hint = "nothing was changed; bring the lake's folder _commits back as it was"


class StoreBusy(StoreFailure):
    code = "store_busy"
    exit_status = 64
    default_hint = "another terminal uses this data folder; stop it or give --data another one"


class StoreFailed(StoreFailure):
    code = "store_failed"
    exit_status = 65
    default_hint = "mend the disk and restart the terminal: what was acked is stored"


def _leaves(root: type[BusError]) -> dict[str, type[BusError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_leaves(child))
    return found


#: code → class, for turning an error on the wire back into an exception.
BY_CODE: dict[str, type[BusError]] = _leaves(BusError)


def from_wire(code: str, message: str, hint: str) -> BusError:
    """The exception for an error that another process reported. An unknown code (a newer peer) keeps
    its text."""
    return BY_CODE.get(code, BusError)(message, hint=hint)
