"""What pages of outlets share: webhooks, mails and SMS; and the pages of mails and SMS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action, Meaning, Read
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.moments import read_optional
from landbridge.core.time import parse_span, show_iso
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

SEE = "observe|subscribe:{topic}"
#: Who may change an outlet: operators, and its owner, who reads the topic.
CHANGE = "operate|subscribe:{topic}"
EVERY = 3.0


# -- forms ---------------------------------------------------------------------------------------------


def read_match(fields: forms.Fields, lists: Sequence[str] = ()) -> dict[str, Any]:
    """What a form says of an outlet; the match is JSON, and an empty one is none."""
    match = forms.first(fields, "match").strip()
    given = forms.arguments([(name, value) for name, value in fields if name != "match"], lists)
    if any(name == "match" for name, _ in fields):
        given["match"] = forms.json_of(match, "match", '{"key": "eu-*"}') if match else None
    return given


def read_range(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.replay``: a range by offset, or by moment."""
    found: dict[str, Any] = {name: forms.first(fields, name) for name in ("topic", "name")}
    for name in ("first", "end"):
        text = forms.first(fields, name).replace(",", "").strip()
        if text and not (text.isdecimal() and len(text) < 20):
            raise BadRequest(f"{text[:40]!r} is not an offset", hint="a number, as the lists show it")
        if text:
            found[name] = int(text)
    for name in ("begin", "until"):
        moment = read_optional(forms.first(fields, name))
        if moment is not None:
            found[name] = moment
    if not ({"first", "end", "begin", "until"} & found.keys()):
        raise BadRequest("no range is given", hint="give the first offset, or the moment that it begins at")
    return found


def replay_told(arguments: dict[str, Any], again: str, waiting: int | None) -> Sequence[str]:
    """What a replay of a range means. ``again``: what becomes of the messages."""
    if "first" in arguments or "end" in arguments:
        begin, end = f"offset {arguments.get('first', 0)}", arguments.get("end", "the end of the log")
    else:
        begin = show_iso(arguments["begin"]) if "begin" in arguments else "the oldest message"
        end = show_iso(arguments["until"]) if "until" in arguments else "now"
    return [
        f"The messages from {begin} to {end} {again}.",
        f"{counted(waiting or 0, 'message')} wait already.",
    ]


def _read_mail(fields: forms.Fields, *, is_new: bool) -> dict[str, Any]:
    """The arguments of ``mail.create`` and ``mail.update``: a recipient a line, the digest in two fields."""
    every, most = forms.first(fields, "digest_every").strip(), forms.first(fields, "digest_most").strip()
    rest = [(name, value) for name, value in fields if not name.startswith("digest_")]
    given = read_match(rest, ["to"])
    given.setdefault("rate", None)
    try:
        given["digest"] = None
        if every:
            given["digest"] = {"every": parse_span(every), **({"most": most} if most else {})}
    except ValueError as error:
        raise BadRequest(f"the time of a digest: {error}") from None
    operation: Any = table.MAIL_CREATE if is_new else table.MAIL_UPDATE
    arguments: dict[str, Any] = msgspec.to_builtins(operation.read(given, strict=False))
    return arguments


def _read_sms(fields: forms.Fields, *, is_new: bool) -> dict[str, Any]:
    """The arguments of ``sms.create`` and ``sms.update``. What was left empty is no limit, or no topic."""
    given = read_match(fields)
    for name in ("rate", "per_day", "per_month", "receipts", "incoming"):
        given.setdefault(name, None)
    operation: Any = table.SMS_CREATE if is_new else table.SMS_UPDATE
    arguments: dict[str, Any] = msgspec.to_builtins(operation.read(given, strict=False))
    return arguments


def read_new_mail(fields: forms.Fields) -> dict[str, Any]:
    return _read_mail(fields, is_new=True)


def read_mail(fields: forms.Fields) -> dict[str, Any]:
    return _read_mail(fields, is_new=False)


def read_new_sms(fields: forms.Fields) -> dict[str, Any]:
    return _read_sms(fields, is_new=True)


def read_sms(fields: forms.Fields) -> dict[str, Any]:
    return _read_sms(fields, is_new=False)


# -- what is shown -------------------------------------------------------------------------------------


async def mails(view: PageView) -> dict[str, Any]:
    found = await view.ask(table.MAIL_LIST, **_asked(view))
    return {
        "kind": "mail",
        "rows": found.mails,
        "where": [row.server for row in found.mails],
        "next": found.next,
    }


async def sms(view: PageView) -> dict[str, Any]:
    found = await view.ask(table.SMS_LIST, **_asked(view))
    where = [
        f"{row.account}: {row.today:,} segments today, {row.this_month:,} this month" for row in found.sms
    ]
    return {"kind": "sms", "rows": found.sms, "where": where, "next": found.next}


def _asked(view: PageView) -> dict[str, Any]:
    return {"topic": view.query.get("topic") or None, "after": view.query.get("after", "")}


async def mail(view: PageView) -> dict[str, Any]:
    found = await view.bus.mails.show(view.names["topic"], view.names["name"])
    spec = found.options
    facts = [
        ("Server", found.server),
        ("From", spec.sender),
        ("To", ", ".join(spec.to)),
        ("Subject", spec.subject),
        (
            "Digest",
            f"after {spec.digest.every:g} s or {spec.digest.most} messages" if spec.digest else "none",
        ),
        ("Text", "HTML" if spec.html else "plain"),
    ]
    return {"kind": "mail", "outlet": found, "facts": facts}


async def one_sms(view: PageView) -> dict[str, Any]:
    found = await view.bus.sms.show(view.names["topic"], view.names["name"])
    spec = found.options
    facts = [
        ("Account", found.account),
        ("From", spec.sender),
        ("To", spec.to),
        ("Segments today", f"{found.today:,} of {spec.per_day or 'any number'}"),
        ("Segments this month", f"{found.this_month:,} of {spec.per_month or 'any number'}"),
        ("Segments of one SMS", f"at most {spec.most_segments}"),
        ("Receipts go to", spec.receipts or "nowhere"),
        ("Incoming SMS go to", spec.incoming or "nowhere"),
        ("The provider tells of deliveries at", found.receipts_url or "–"),
        ("SMS come in at", found.incoming_url or "–"),
    ]
    return {"kind": "sms", "outlet": found, "facts": facts}


async def mail_details(view: PageView) -> dict[str, Any]:
    return _details(view, await mail(view))


async def sms_details(view: PageView) -> dict[str, Any]:
    return _details(view, await one_sms(view))


def _details(view: PageView, shown: dict[str, Any]) -> dict[str, Any]:
    match = shown["outlet"].options.match
    text = msgspec.json.format(msgspec.json.encode(match), indent=2).decode() if match else ""
    return {"title": view.names["name"], "match": text, **shown}


async def of_mail(view: PageView) -> dict[str, Any]:
    return {"kind": "mail"}


async def of_sms(view: PageView) -> dict[str, Any]:
    return {"kind": "sms"}


# -- what actions mean ---------------------------------------------------------------------------------


async def mail_replay(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.mails.show(arguments["topic"], arguments["name"])
    return replay_told(arguments, "are mailed again", found.lag)


async def sms_replay(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.sms.show(arguments["topic"], arguments["name"])
    return replay_told(arguments, "are sent as SMS again, and charged again", found.lag)


async def mail_deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.mails.show(arguments["topic"], arguments["name"])
    return _deletion(found.name, found.lag)


async def sms_deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.sms.show(arguments["topic"], arguments["name"])
    return _deletion(found.name, found.lag)


def _deletion(name: str, lag: int | None) -> Sequence[str]:
    return [
        f"The outlet {name} goes with its group. This can’t be undone.",
        f"{counted(lag or 0, 'message')} that wait are not sent.",
    ]


# -- the entries ---------------------------------------------------------------------------------------


def _pages(kind: str, title: str, new: str, rows: Any, show: Any, details: Any, kind_of: Any) -> list[Page]:
    path = f"/console/{kind}"
    return [
        Page(
            path, title, "outlets.html", query=("topic", "after"), load=kind_of,
            fragments=[Fragment("rows", "_outlets.html", rows, every=EVERY)],
        ),
        Page(
            f"/console/new-{kind}", new, "new_outlet.html", scope="subscribe", under=path, query=("topic",),
            load=kind_of,
        ),
        Page(
            f"/console/topics/{{topic}}/{kind}/{{name}}", title, "outlet.html", scope=SEE, under=path,
            load=details, fragments=[Fragment("outlet", "_outlet.html", show, every=EVERY)],
        ),
    ]  # fmt: skip


PAGES = [
    *_pages("mail", "Mail", "New mail outlet", mails, mail, mail_details, of_mail),
    *_pages("sms", "SMS", "New SMS outlet", sms, one_sms, sms_details, of_sms),
]


def _actions(
    kind: str, noun: str, again: str, reads: tuple[Read, Read], meanings: tuple[Meaning, Meaning]
) -> list[Action]:
    """``again``: what a replay has done. ``reads``: of the forms of a new outlet, and of a change.
    ``meanings``: of a replay, and of a deletion."""
    one = f"/console/topics/{{topic}}/{kind}/{{name}}"

    def operation(verb: str) -> Any:
        return table.OPERATIONS[f"{kind}.{verb}"]

    return [
        Action(
            f"{kind}.create", operation("create"), "Create the outlet",
            done=f"The {noun} outlet {{name}} is there", read=reads[0], to=one,
        ),
        Action(
            f"{kind}.update", operation("update"), "Save", done=f"The {noun} outlet {{name}} is changed",
            read=reads[1], to=one,
        ),
        Action(f"{kind}.test", operation("test"), "Send a test", done="A test was sent", scope=CHANGE),
        Action(
            f"{kind}.pause", operation("pause"), "Pause", done="The outlet {name} is paused", scope=CHANGE
        ),
        Action(
            f"{kind}.resume", operation("resume"), "Resume", done="The outlet {name} goes on", scope=CHANGE
        ),
        Action(
            f"{kind}.replay", operation("replay"), "Replay", done=f"{{messages}} messages are {again}",
            meaning=meanings[0], read=read_range, scope=CHANGE,
        ),
        Action(
            f"{kind}.delete", operation("delete"), "Delete the outlet", done="The outlet {name} is deleted",
            danger=True, meaning=meanings[1], to=f"/console/{kind}", scope=CHANGE,
        ),
    ]  # fmt: skip


ACTIONS = [
    *_actions("mail", "mail", "mailed again", (read_new_mail, read_mail), (mail_replay, mail_deletion)),
    *_actions("sms", "SMS", "sent again", (read_new_sms, read_sms), (sms_replay, sms_deletion)),
]
