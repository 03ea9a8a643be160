"""``landbridge customer service``: services that the registry registers, for all terminals of a customer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from landbridge.cli import output, units
from landbridge.cli.loop import run
from landbridge.cli.options import Commands, ContextName, OptionGroup, argument, flag, option, pairs, span
from landbridge.cli.output import columns
from landbridge.cli.registry_access import as_admin, change, everything, known_registry
from landbridge.errors import BadRequest
from landbridge.node import terminal_file

if TYPE_CHECKING:
    from landbridge.client.registry_documents import (
        CreatedServiceCredential,
        CreatedServiceToken,
        CustomerService,
    )

app = Commands(
    no_args_is_help=True,
    help="Services of a customer: programs that use all its terminals, by tokens that the registry signs.",
)

LIST = columns("Service=name@cyan | State | Version | Owner | Scopes | Created=created_at:moment")
SHOW = columns(
    "Id=service_id | State | Version | Owner | Description | Scopes | Publishes | Subscribes | Health | "
    "Created=created_at:moment | Suspended=suspended_at:moment"
)
CREDENTIALS = columns("Credential=credential_id@cyan | Created=created_at:moment | Ends=ends_at:moment")

#: Characters of a credential's file that are read: it has one line.
_LONGEST = 1000

Named = Annotated[str, argument("SERVICE", "The service's name or id.")]
SCOPES = (
    "What its tokens may do at most: publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate "
    "or admin; * is one word, # any number. Repeatable."
)


class ServiceOptions(OptionGroup):
    """What a service says of itself."""

    scope: list[str] | None = option(SCOPES, metavar="SCOPE")
    version: str | None = option("Its version, as 1.4.0.")
    owner: str | None = option("Who answers for it: a person or a team.")
    description: str | None = option("What it does.")
    publishes: list[str] | None = option(
        "A pattern of topics that it publishes. Repeatable.", metavar="PATTERN"
    )
    subscribes: list[str] | None = option(
        "A pattern of topics that it subscribes to. Repeatable.", metavar="PATTERN"
    )
    callback: list[str] | None = option(
        "Where outcomes go: NAME=URL or NAME=topic:TOPIC. Repeatable.", metavar="NAME=WHERE"
    )
    health: str | None = option("A URL that answers 2xx while it is well.", metavar="URL")
    metadata: list[str] | None = option("Anything else: NAME=VALUE. Repeatable.", metavar="NAME=VALUE")
    file: Path | None = option(
        "A JSON file with all of it, endpoints too; options win over it.", "--from", metavar="FILE"
    )

    def members(self) -> dict[str, Any]:
        """Those of a request to the registry."""
        found = {} if self.file is None else _described(self.file)
        found |= self.given("version", "owner", "description", "publishes", "subscribes", "health")
        if self.scope is not None:
            found["scopes"] = self.scope
        for name, given in (("callbacks", self.callback), ("metadata", self.metadata)):
            if given is not None:
                found[name] = pairs(given, name)
        return found


def _described(file: Path) -> dict[str, Any]:
    from landbridge.client.registry_documents import UpdateCustomerService

    try:
        raw = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        raw.pop("name", None)
        found = msgspec.convert({**raw, "service": ""}, UpdateCustomerService)
    except OSError as error:
        raise BadRequest(f"can't read {file}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"{file} doesn't describe a service: {error}") from None
    return {name: getattr(found, name) for name in raw}


@app.command()
def register(
    name: Annotated[str, argument("NAME", "What to call it: the subject of its tokens.")],
    *,
    options: ServiceOptions,
    write: Path | None = option("Write its credential to a new file, for its owner alone.", metavar="FILE"),
    context: ContextName = None,
) -> None:
    """Register a service. Its credential is shown once, or written to a file; the registry keeps a digest.

    Examples:
      landbridge customer service register shop --scope 'publish:orders.#' --owner team-shop
      landbridge customer service register billing --scope 'subscribe:orders.#' --write billing.key
    """
    members = options.members()
    with terminal_file.created(write):
        made = _save(write, as_admin(context, lambda client: client.register_service(name, **members)))
    _tell_credential(made, write, f"the service {name} is {made.service_id}")


@app.command("list")
def list_services(context: ContextName = None) -> None:
    """List the services of the customer.

    Examples:
      landbridge customer service list
    """
    found = as_admin(context, lambda client: everything(client.list_services))
    empty = "no services yet: 'landbridge customer service register NAME'"
    output.rows(LIST, found, empty=empty, show=_row)


def _row(service: CustomerService) -> dict[str, Any]:
    texts = {name: " ".join(getattr(service, name)) for name in ("scopes", "publishes", "subscribes")}
    return output.fields(service, **texts)


@app.command()
def show(service: Named, context: ContextName = None) -> None:
    """Show one service, and its credentials by their ids.

    Examples:
      landbridge customer service show shop
    """
    output.emit(as_admin(context, lambda client: client.show_service(service)), _show)


def _show(found: CustomerService) -> None:
    row = _row(found)
    output.record(found.name, SHOW, row)
    print()
    output.table(CREDENTIALS, row["credentials"], empty="  no credentials")


@app.command()
def update(service: Named, *, options: ServiceOptions, context: ContextName = None) -> None:
    """Change what a service says of itself, or its scopes. Its tokens end where scopes are taken away.

    Examples:
      landbridge customer service update shop --version 1.5.0
    """
    members = options.members()
    if not members:
        raise typer.BadParameter("give at least one option to change")
    change(
        context,
        lambda client: client.update_service(service, **members),
        lambda found: f"the service {found.name} is changed",
    )


@app.command()
def suspend(service: Named, context: ContextName = None) -> None:
    """Suspend a service: its connections end at all terminals, and it gets no tokens.

    Examples:
      landbridge customer service suspend shop
    """
    change(
        context,
        lambda client: client.suspend_service(service),
        lambda found: f"the service {found.name} is suspended",
    )


@app.command()
def resume(service: Named, context: ContextName = None) -> None:
    """Resume a suspended service: it gets tokens again. Those that it had stay ended.

    Examples:
      landbridge customer service resume shop
    """
    change(
        context,
        lambda client: client.resume_service(service),
        lambda found: f"the service {found.name} is active",
    )


@app.command()
def rotate(
    service: Named,
    overlap: float = span("For how long the credential before stays good.", value=86400.0, default="1d"),
    now: bool = flag("End the credential before, and all tokens of the service, at once.", "--now"),
    write: Path | None = option("Write the new one to a new file, for its owner alone.", metavar="FILE"),
    context: ContextName = None,
) -> None:
    """Make a new credential for a service. The one before stays good beside it for a while.

    Examples:
      landbridge customer service rotate shop --overlap 1h
      landbridge customer service rotate shop --now
    """
    beside = 0.0 if now else overlap
    with terminal_file.created(write):
        made = _save(
            write, as_admin(context, lambda client: client.rotate_service_credential(service, beside))
        )
    _tell_credential(made, write, f"the service {made.name} has the credential {made.credential_id}")


@app.command("rotate-key")
def rotate_key(
    now: bool = flag("End all tokens of all services at once: a key was stolen.", "--now"),
    context: ContextName = None,
) -> None:
    """Make a new key that signs the tokens of all services. It signs in a minute, when terminals know it.

    Examples:
      landbridge customer service rotate-key
    """
    change(
        context,
        lambda client: client.rotate_token_key(keep_old=not now),
        lambda found: (
            f"tokens are signed with the key {found.items[0].key_id}"
            + ("" if now else f" from {units.iso(found.items[0].signs_from)} on")
        ),
    )


@app.command()
def remove(
    service: Named,
    force: bool = flag("Without asking.", "--force"),
    context: ContextName = None,
) -> None:
    """Remove a service: its credentials, its tokens and its connections end.

    Examples:
      landbridge customer service remove shop
    """
    if not force:
        output.confirm(f"Remove the service {service}?")
    change(
        context,
        lambda client: client.remove_service(service),
        lambda _: f"the service {service} is removed",
        lambda _: {"removed": service},
    )


@app.command()
def token(
    service: Named,
    credential: str | None = option(
        "Its credential.", metavar="CREDENTIAL", envvar="LANDBRIDGE_CREDENTIAL", show_envvar=True
    ),
    file: Path | None = option("A file with its credential.", "--credential-file", metavar="FILE"),
    scope: list[str] | None = option("Only these of its scopes. Repeatable.", metavar="SCOPE"),
    life: float = span("For how long it is valid, 10m at most.", value=600.0, default="10m"),
    registry: str | None = option("The registry, where no context leads to it.", metavar="URL"),
    context: ContextName = None,
) -> None:
    """Get a token for a service, by its credential. On a pipe, the token alone is printed.

    Examples:
      landbridge customer service token shop --credential-file shop.key
      LANDBRIDGE_TOKEN=$(landbridge customer service token shop) landbridge publish orders '{"id": 1}'
    """
    if file is not None:
        credential = _read(file)
    if not credential:
        raise typer.BadParameter("give the credential by --credential-file, or in LANDBRIDGE_CREDENTIAL")
    url, ca = known_registry(context) if registry is None else (registry, None)
    output.emit(run(_token(url, ca, service, credential, scope, life)), _show_token)


async def _token(
    url: str, ca: str | None, service: str, credential: str, scopes: Sequence[str] | None, life: float
) -> CreatedServiceToken:
    from landbridge.client.registry import RegistryClient

    async with RegistryClient(url, ca=ca) as client:
        wanted = None if scopes is None else list(scopes)
        return await client.create_service_token(service, credential, wanted, life=life)


def _show_token(made: CreatedServiceToken) -> None:
    print(made.token)
    output.note(f"for {made.name} until {units.iso(made.expires_at)}, at all terminals of the customer")


# -- credentials ---------------------------------------------------------------------------------------


def _save(write: Path | None, made: CreatedServiceCredential) -> CreatedServiceCredential:
    if write is not None:
        write.write_text(f"{made.credential}\n")
    return made


def _read(file: Path) -> str:
    try:
        with file.open() as opened:
            return opened.read(_LONGEST).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read {file}: {error}") from None


def _tell_credential(made: CreatedServiceCredential, write: Path | None, text: str) -> None:
    result = output.fields(made)
    if write is not None:
        result |= {"credential": None, "file": str(write)}

    def show(_: Any) -> None:
        if write is not None:
            output.done(f"{text}; its credential is in {write}")
            return
        output.done(text)
        print(made.credential)
        output.note("the credential is not shown again")

    output.emit(result, show)
