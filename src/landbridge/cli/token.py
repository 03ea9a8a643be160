"""``landbridge token``: credentials for services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument, option, span
from landbridge.cli.output import columns
from landbridge.cli.saving import place_for, save

if TYPE_CHECKING:
    from landbridge.protocol.operations import TokenMade

LIST = columns(
    "Id@cyan | Subject | Scopes | Issued=issued_at:moment | Expires=expires_at:moment | Revoked@red"
)

app = Commands(no_args_is_help=True, help="Tokens: who may do what. A terminal makes and checks its own.")


@app.command()
def create(
    subject: Annotated[str, option("The service that the token is for.", metavar="NAME")],
    scope: Annotated[
        list[str],
        option(
            "publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate or admin; * is one "
            "word, # any number. Repeatable.",
            metavar="SCOPE",
        ),
    ],
    life: float = span("For how long it is valid (1h, 30d).", value=3600.0, default="1h"),
    save_as: str | None = option("Write it into a context of this name, unseen.", metavar="CONTEXT"),
    context: ContextName = None,
) -> None:
    """Make a token. On a pipe, the token alone is printed. A service that is not registered is registered.

    Examples:
      landbridge token create --subject shop --scope 'publish:orders.#' --life 30d
      landbridge token create --subject billing --scope subscribe:orders --save-as billing
    """
    place = place_for(save_as, context)
    made = ask(context, lambda bus: bus.tokens.create(subject, scope, life))
    if save_as is None or place is None:
        output.emit(made, _show)
        return
    save(save_as, place, made.token)
    shown = output.fields(made, context=save_as)
    del shown["token"]
    until = units.iso(made.expires_at)
    output.tell(shown, f"the context {save_as} acts as {subject} until {until}, by token {made.id}")


def _show(made: TokenMade) -> None:
    print(made.token)
    # Whoever pipes the token wants nothing else in it; whoever looks is told what it is.
    until = units.iso(made.expires_at)
    output.note(f"for {made.subject} until {until}; 'landbridge token revoke {made.id}' ends it")


@app.command("list")
def list_tokens(
    subject: str | None = option("Only this service's.", metavar="NAME"), context: ContextName = None
) -> None:
    """List the tokens that were made here and have not expired. The tokens themselves are kept nowhere.

    Examples:
      landbridge token list
      landbridge token list --subject shop --json
    """
    rows = ask(context, lambda bus: bus.tokens.list(subject=subject))
    empty = "no tokens: 'landbridge token create' makes one"
    output.rows(LIST, rows, empty=empty, show=lambda row: output.fields(row, scopes=" ".join(row.scopes)))


@app.command()
def revoke(
    id: str | None = argument("ID", "The id of one token.", show_default=True),
    subject: str | None = option("Every token of this service.", metavar="NAME"),
    context: ContextName = None,
) -> None:
    """Take a token back, or all of a service. Connections that use it end at once.

    Examples:
      landbridge token revoke 3f0c8c2e9d3b4b6f8a4e3c1d2b5a6f70
      landbridge token revoke --subject shop
    """
    if (id is None) == (subject is None):
        raise typer.BadParameter("name a token by its id, or a service with --subject")
    result = ask(context, lambda bus: bus.tokens.revoke(id=id, subject=subject))
    what = f"the token {id}" if id is not None else f"every token of {subject}"
    output.tell(result, f"{what} is revoked")
    if not result.tokens:
        output.note("no such token is known here ('landbridge token list'); if one turns up, it is refused")
