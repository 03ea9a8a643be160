"""Tokens: those that were made here, new ones, and revocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.core.time import parse_span
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/tokens"
EVERY = 10.0


async def rows(view: PageView) -> dict[str, Any]:
    subject, after = view.query.get("subject") or None, view.query.get("after", "")
    own = await view.bus.tokens.show()
    return {"page_of": await view.ask(table.TOKEN_LIST, subject=subject, after=after), "own": own.id}


# -- actions -------------------------------------------------------------------------------------------


def read_new(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``token.create``: a scope a line, the life as people write it."""
    try:
        life = parse_span(forms.first(fields, "life") or "1h")
    except ValueError as error:
        raise BadRequest(f"life: {error}") from None
    scopes = forms.first(fields, "scopes").split()
    return {"subject": forms.first(fields, "subject"), "scopes": scopes, "life": life}


def read_revocation(fields: forms.Fields) -> dict[str, Any]:
    """One token by its id, or all of a service."""
    return {name: value for name in ("id", "subject") if (value := forms.first(fields, name))}


async def revocation(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    if "subject" in arguments:
        return [
            f"Every token that {arguments['subject']} has or will get is refused, and its connections end.",
            "This can’t be undone; to keep a service away for a while, suspend it.",
        ]
    found = ["The token is refused from now on, and its connections end. This can’t be undone."]
    if arguments.get("id") == (await bus.tokens.show()).id:
        found.append("It is the token of this very session: you will be signed out.")
    return found


PAGES = [
    Page(
        LIST, "Tokens", "tokens.html", scope="admin", query=("subject", "after"),
        fragments=[Fragment("rows", "_tokens.html", rows, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "token.create", table.TOKEN_CREATE, "Make the token", done="A token for {subject} was made",
        read=read_new, secret="token",
    ),
    Action(
        "token.revoke", table.TOKEN_REVOKE, "Revoke", done="{revoked} is revoked", danger=True,
        meaning=revocation, read=read_revocation,
    ),
]  # fmt: skip
