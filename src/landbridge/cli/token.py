"""``landbridge token``: credentials for services."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json, given
from landbridge.cli.output import Column

LIST = [
    Column("Id", "id", style="cyan"),
    Column("Subject", "subject"),
    Column("Scopes", "scopes"),
    Column("Issued", "issued_at", units.ago, plain=units.iso),
    Column("Expires", "expires_at", units.ago, plain=units.iso),
    Column("Revoked", "revoked", style="red"),
]

app = typer.Typer(no_args_is_help=True, help="Tokens: who may do what. A terminal makes and checks its own.")


@app.command()
def create(
    subject: Annotated[str, typer.Option(metavar="NAME", help="The service that the token is for.")],
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE",
            help="publish:PATTERN, subscribe:PATTERN or admin; * is one word, # any number. Repeatable.",
        ),
    ],
    life: Annotated[
        float,
        typer.Option(metavar="SPAN", parser=units.parse_span, help="For how long it is valid (1h, 30d)."),
    ] = 3600.0,
    save_as: Annotated[
        str | None, typer.Option(metavar="CONTEXT", help="Write it into a context of this name, unseen.")
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Make a token. On a pipe, the token alone is printed.

    \b
    Examples:
      landbridge token create --subject shop --scope 'publish:orders.#' --life 30d
      landbridge token create --subject billing --scope subscribe:orders --save-as billing
    """
    from landbridge.cli.context import save
    from landbridge.cli.loop import ask
    from landbridge.client.context import Context, resolve

    result = ask(context, "token.create", subject=subject, scopes=scope, life=life)
    if save_as is not None:
        here = resolve(context=context)
        save(save_as, Context(here.url, result.pop("token"), here.ca))
        result["context"] = save_as
        expiry = units.iso(result["expires_at"])
        output.emit(
            result,
            lambda made: output.done(
                f"the context {save_as} acts as {subject} until {expiry}, by token {made['id']}"
            ),
        )
    else:
        output.emit(result, _show)


def _show(result: dict[str, Any]) -> None:
    print(result["token"])
    # Whoever pipes the token wants nothing else in it; whoever looks is told what it is.
    if sys.stderr.isatty():
        expires = units.iso(result["expires_at"])
        output.note(
            f"for {result['subject']} until {expires}; 'landbridge token revoke {result['id']}' ends it"
        )


@app.command("list")
def list_tokens(
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Only this service's.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """List the tokens that were made here and have not expired. The tokens themselves are kept nowhere.

    \b
    Examples:
      landbridge token list
      landbridge token list --subject shop --json
    """
    from landbridge.cli.loop import ask_all

    rows = ask_all(context, "token.list", "tokens", **given(subject=subject))
    empty = "no tokens: 'landbridge token create' makes one"
    output.emit(rows, lambda rows: output.table(LIST, [_row(row) for row in rows], empty=empty))


def _row(token: dict[str, Any]) -> dict[str, Any]:
    return {**token, "scopes": " ".join(token["scopes"])}


@app.command()
def revoke(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The id of one token.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Every token of this service.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Take a token back, or all of a service. Connections that use it end at once.

    \b
    Examples:
      landbridge token revoke 3f0c8c2e9d3b4b6f8a4e3c1d2b5a6f70
      landbridge token revoke --subject shop
    """
    from landbridge.cli.loop import ask

    if (id is None) == (subject is None):
        raise typer.BadParameter("name a token by its id, or a service with --subject")
    result = ask(context, "token.revoke", **given(id=id, subject=subject))
    what = f"the token {id}" if id is not None else f"every token of {subject}"
    output.emit(result, lambda _: output.done(f"{what} is revoked"))
