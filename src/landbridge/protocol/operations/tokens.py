"""Operations on tokens."""

from __future__ import annotations

from typing import Annotated

from landbridge.protocol.operations.common import SCOPES_HELP, After, Next, Nothing
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class TokenCreate(Arguments, frozen=True):
    """A token to make."""

    subject: Annotated[str, about("The service that it is for.")]
    scopes: Annotated[list[str], about(SCOPES_HELP)]
    life: Annotated[float, about("Seconds until it expires.")] = 3600.0


class TokenList(Arguments, frozen=True, kw_only=True):
    """A page of the tokens that were made here and have not expired."""

    subject: Annotated[str | None, about("Tokens of this service alone; None: of all.")] = None
    after: After = ""


class TokenRevoke(Arguments, frozen=True, kw_only=True):
    """Tokens to revoke. Give one of the two."""

    id: Annotated[str | None, about("One token.")] = None
    subject: Annotated[str | None, about("A service, with every token that it has or will get.")] = None


class TokenMade(Result, frozen=True, kw_only=True):
    """A fresh token. The terminal keeps everything but the token itself."""

    token: Annotated[str, about("The token, for LANDBRIDGE_TOKEN or connect(token=…).")]
    id: Annotated[str, about("Names it in token.list and token.revoke.")]
    subject: Annotated[str, about("The service that it is for.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]


class TokenRow(Result, frozen=True, kw_only=True):
    """A token, in short."""

    id: Annotated[str, about("Names it in token.revoke.")]
    subject: Annotated[str, about("The service that it is for.")]
    scopes: Annotated[list[str], about("What its bearer may do.")]
    issued_at: Annotated[int, about("When it was made, in microseconds.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]
    revoked: Annotated[bool, about("It is no longer accepted.")]


class TokenRows(Result, frozen=True, kw_only=True):
    """Some of the tokens, from the one that expires first."""

    tokens: Annotated[list[TokenRow], about("The tokens of this page.")]
    next: Next


class TokenShown(Result, frozen=True, kw_only=True):
    """What the caller's own token or credential is good for."""

    id: Annotated[str, about("Names the token in token.revoke; empty for a credential.")]
    subject: Annotated[str, about("The service that it is for.")]
    scopes: Annotated[list[str], about("What its bearer may do now.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]


class Revoked(Result, frozen=True, kw_only=True):
    """What was revoked."""

    revoked: Annotated[str, about("A token's id, or sub:SUBJECT.")]
    tokens: Annotated[int, about("How many tokens it ends that were made here and have not expired.")]


# -- the entries ---------------------------------------------------------------------------------------


TOKEN_CREATE = operation(
    "token.create",
    TokenCreate,
    TokenMade,
    "POST /v1/tokens",
    "Make a token for a service.",
    scope="admin",
    where="home",
)
TOKEN_LIST = operation(
    "token.list", TokenList, TokenRows, "GET /v1/tokens",
    "List the tokens that were made here and have not expired.", scope="admin",
    where="home",
)  # fmt: skip
TOKEN_SHOW = operation(
    "token.show", Nothing, TokenShown, "GET /v1/token", "Show what the token that asks may do.",
    where="here",
)  # fmt: skip
TOKEN_REVOKE = operation(
    "token.revoke", TokenRevoke, Revoked, "POST /v1/tokens/revoke",
    "Revoke a token, or every token of a service; their connections end at once.", scope="admin",
    where="home",
)  # fmt: skip
