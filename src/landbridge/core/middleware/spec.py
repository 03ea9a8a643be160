"""The settings of a topic's middleware: a list of stages, in the order in which they work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from landbridge.core.names import check_name
from landbridge.errors import BadRequest

#: Stages of a topic.
MOST_STAGES = 16
#: Fields, headers, patterns, claims and groups that a stage may name, and characters of one of them.
MOST_NAMED, LONGEST_NAMED = 64, 512
#: Bytes of the options of a transform, as JSON.
LARGEST_OPTIONS = 16 << 10
#: Seconds that a transform may ask for, for one batch.
LONGEST_TRANSFORM = 30.0
LEVELS = range(1, 20)
#: What a stage may say of the claims of whoever publishes; METADATA is a prefix.
CLAIMS = ("subject", "token", "issuer", "issued_at", "expires_at", "scope", "customer", "version", "owner")
METADATA = "metadata."


class StageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="stage"):
    """What all stages have."""


class TransformStage(StageOptions, frozen=True, kw_only=True, tag="transform"):
    """Let the users' own code change a batch."""

    #: The name of an entry point of the group "landbridge.middleware".
    use: str
    #: What the entry point is called with, once, to make the transform.
    options: dict[str, Any] = {}
    #: Seconds that one batch may take.
    within: float = 1.0
    #: "store": before messages are stored; "deliver": before they are handed out.
    at: Literal["store", "deliver"] = "store"
    #: Of a stage before delivery: groups that get messages without it.
    except_groups: tuple[str, ...] = ()


class RedactStage(StageOptions, frozen=True, kw_only=True, tag="redact"):
    """Take out, or replace, parts of messages."""

    #: JSON pointers into payloads; "*" in the place of a name or index stands for each.
    fields: tuple[str, ...] = ()
    #: Names of headers.
    headers: tuple[str, ...] = ()
    #: Regular expressions (RE2). What they match in a text of a payload or header is replaced.
    patterns: tuple[str, ...] = ()
    #: What stands in the place of a field, a header or a match. None takes fields and headers away, and
    #: matches too.
    replacement: str | None = "[redacted]"
    #: "store": before messages are stored; "deliver": before they are handed out.
    at: Literal["store", "deliver"] = "store"
    #: Of a stage before delivery: groups that get messages without it.
    except_groups: tuple[str, ...] = ()


class AuthoriseStage(StageOptions, frozen=True, kw_only=True, tag="authorise"):
    """Say in each message who has published it, and demand claims."""

    #: Claims that go into headers, beside the subject: "issuer", "metadata.team".
    claims: tuple[str, ...] = ()
    #: Claims that the publisher must have, each with one of these values; no values: any will do.
    require: dict[str, tuple[str, ...]] = {}
    #: The member of JSON payloads that says the same as the headers; empty: none.
    payload: str = ""


class ValidateStage(StageOptions, frozen=True, kw_only=True, tag="validate"):
    """Refuse what doesn't fit the schema of its event type."""

    #: What becomes of a message whose type the topic doesn't list.
    unlisted: Literal["refuse", "accept"] = "refuse"


class CompressStage(StageOptions, frozen=True, kw_only=True, tag="compress"):
    """Store batches compressed (zstd). Readers notice nothing."""

    #: 1 to 19: higher ones take less room and more time.
    level: int = 1


AnyStage: TypeAlias = TransformStage | RedactStage | AuthoriseStage | ValidateStage | CompressStage


def name_of(stage: AnyStage) -> str:
    """What a stage is called in settings, errors and metrics."""
    tag = stage.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def is_late(stage: AnyStage) -> bool:
    """Does it work before delivery?"""
    return isinstance(stage, TransformStage | RedactStage) and stage.at == "deliver"


def level_of(stages: Sequence[AnyStage]) -> int:
    """The level at which batches are compressed; 0: they are not."""
    return next((stage.level for stage in stages if isinstance(stage, CompressStage)), 0)


def check_stages(stages: Sequence[AnyStage]) -> None:
    """BadRequest where these stages make no chain."""
    if len(stages) > MOST_STAGES:
        raise BadRequest(f"middleware of {len(stages)} stages, allowed are {MOST_STAGES}")
    for once in (AuthoriseStage, ValidateStage, CompressStage):
        if sum(isinstance(stage, once) for stage in stages) > 1:
            tag = once.__struct_config__.tag
            raise BadRequest(f"middleware: the stage {tag} stands in it twice", hint="leave one of them out")
    early = [stage for stage in stages if not is_late(stage)]
    for stage in early[:-1]:
        if isinstance(stage, CompressStage):
            raise BadRequest(
                "middleware: compress is not the last stage before storing",
                hint="the other stages read payloads: put compress behind them",
            )
    for stage in stages:
        _check(stage)


def _check(stage: AnyStage) -> None:
    if isinstance(stage, CompressStage):
        if stage.level not in LEVELS:
            raise BadRequest(f"compress: level {stage.level}, allowed are {LEVELS[0]} to {LEVELS[-1]}")
        return
    if isinstance(stage, ValidateStage):
        return
    if isinstance(stage, AuthoriseStage):
        _check_named(
            "authorise", [*stage.claims, *stage.require, *(v for vs in stage.require.values() for v in vs)]
        )
        for claim in (*stage.claims, *stage.require):
            if claim not in CLAIMS and not (claim.startswith(METADATA) and claim != METADATA):
                raise BadRequest(
                    f"authorise: there is no claim {claim[:60]!r}",
                    hint=f"there are {', '.join(CLAIMS)} and {METADATA}NAME",
                )
        return
    if stage.except_groups and stage.at != "deliver":
        raise BadRequest(
            f"{name_of(stage)}: except_groups is for stages before delivery", hint='set "at" to "deliver"'
        )
    for group in stage.except_groups:
        check_name(group, "group")
    if isinstance(stage, TransformStage):
        _check_named("transform", [stage.use, *stage.except_groups])
        if not 0 < stage.within <= LONGEST_TRANSFORM:
            raise BadRequest(f"transform: within is above 0 and at most {LONGEST_TRANSFORM:.0f} seconds")
        if len(msgspec.json.encode(stage.options)) > LARGEST_OPTIONS:
            raise BadRequest(f"transform: options above {LARGEST_OPTIONS} bytes")
        return
    _check_named("redact", [*stage.fields, *stage.headers, *stage.patterns, *stage.except_groups])
    if not (stage.fields or stage.headers or stage.patterns):
        raise BadRequest("redact: nothing is named", hint="fields, headers or patterns")
    if len(stage.replacement or "") > LONGEST_NAMED:
        raise BadRequest(f"redact: a replacement of more than {LONGEST_NAMED} characters")


def _check_named(stage: str, named: Sequence[str]) -> None:
    if len(named) > MOST_NAMED:
        raise BadRequest(f"{stage}: {len(named)} things are named, allowed are {MOST_NAMED}")
    for each in named:
        if not 0 < len(each) <= LONGEST_NAMED:
            raise BadRequest(f"{stage}: a name of {len(each)} characters, allowed are 1 to {LONGEST_NAMED}")
