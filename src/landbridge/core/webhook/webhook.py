"""A webhook: what it is, and what follows from an answer.

A webhook is an outlet (``landbridge.core.outlet``) that sends requests to a URL. Everything here is a
function of its documents and of ``now``, in microseconds.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import read_url
from landbridge.core.options import read_options
from landbridge.core.outlet.outlet import StoredOutlet, check_spec
from landbridge.core.outlet.spec import Verdict
from landbridge.core.rules.query import document_of, read_query
from landbridge.core.time import SECOND
from landbridge.core.topic import LONGEST
from landbridge.core.webhook.signature import read_secret
from landbridge.core.webhook.spec import WebhookSpec
from landbridge.errors import BadRequest

#: The collections of the documents, beside their topics.
COLLECTION, STATES = "$webhooks", "$webhook-states"
#: Secrets that are valid at the same time, and seconds that the old ones are valid after a rotation.
MOST_SECRETS, OVERLAP = 4, 86400.0
LONGEST_TYPE = 200
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[\x20-\x7e]*)?\Z")
_TYPE_IF_NONE = "application/json"


class WebhookSecret(msgspec.Struct, frozen=True):
    """A secret that requests are signed with."""

    secret: str
    made_at: int
    #: 0: it is the newest, and valid until the next rotation.
    expires_at: int = 0


class StoredWebhook(StoredOutlet, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: WebhookSpec
    #: Newest first.
    secrets: tuple[WebhookSecret, ...]
    #: The topic of the rule of its query; empty: it has no query.
    rule: str = ""

    @property
    def reads(self) -> str:
        """The topic whose messages are sent: that of its rule, where it has a query."""
        return self.rule or self.spec.topic


# -- options -------------------------------------------------------------------------------------------


def webhook_spec(raw: dict[str, Any]) -> WebhookSpec:
    """The options that these make. BadRequest says what is wrong with them."""
    spec = read_options(raw, WebhookSpec, "webhook options")
    check_spec(spec, "webhook", group_name(spec.name))
    read_url(spec.url)
    check_content_type(spec.content_type)
    return spec if spec.query is None else replace(spec, query=document_of(read_query(spec.query)))


def check_content_type(said: str | None) -> None:
    """BadRequest for what the header Content-Type can't have; None is the message's own."""
    if said is not None and (len(said) > LONGEST_TYPE or not _MEDIA_TYPE.match(said)):
        raise BadRequest(f"no media type: {said[:60]!r}", hint="such as application/json")


def group_name(name: str) -> str:
    """The group of a webhook."""
    return f"webhook.{name}"


def content_type(said: str | None, own: object) -> str:
    """The header Content-Type. ``said``: by the options. ``own``: the message's header of that name, whatever
    it is."""
    if said is not None:
        return said
    fits = isinstance(own, str) and len(own) <= LONGEST_TYPE and _MEDIA_TYPE.match(own)
    return str(own) if fits else _TYPE_IF_NONE


# -- secrets -------------------------------------------------------------------------------------------


def rotate(
    secrets: tuple[WebhookSecret, ...], secret: str, now: int, overlap: float
) -> tuple[WebhookSecret, ...]:
    """A new secret; those before are valid for ``overlap`` seconds more at most."""
    read_secret(secret)
    if not 0 <= overlap <= LONGEST:
        raise BadRequest(f"an overlap of {overlap:g} seconds")
    if any(each.secret == secret for each in secrets):
        raise BadRequest("the webhook has that secret already")
    end = now + int(overlap * SECOND)
    older = [
        replace(each, expires_at=min(each.expires_at or end, end))
        for each in secrets
        if overlap and (not each.expires_at or each.expires_at > now)
    ]
    if len(older) >= MOST_SECRETS:
        raise BadRequest(
            f"{len(older)} secrets are valid now, as many as there may be", hint="give no overlap, or wait"
        )
    return (WebhookSecret(secret, now), *older)


def valid_secrets(secrets: tuple[WebhookSecret, ...], now: int) -> list[str]:
    """Those that a request is signed with, newest first."""
    return [each.secret for each in secrets if not each.expires_at or each.expires_at > now]


# -- answers -------------------------------------------------------------------------------------------


def verdict_of(status: int) -> Verdict:
    """What an answer means. 0: there was none. A redirect is a failure: it is not followed."""
    if 200 <= status < 300:
        return "delivered"
    if status == 410:
        return "gone"
    return "throttled" if status in (429, 502, 504) else "failed"
