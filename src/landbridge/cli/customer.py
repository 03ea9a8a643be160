"""``landbridge customer``: the tenants of a registry. Its operator makes and removes them; each looks after
its own credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output, registry_access, units
from landbridge.cli.context import save
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import BadContext, ContextTaken, UnknownCustomer

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient

app = typer.Typer(no_args_is_help=True, help="Customers: the tenants of a registry. Nothing is shared.")

LIST = [
    Column("Customer", "name", style="cyan"),
    Column("Id", "customer_id"),
    Column("Terminals", "terminals", units.count),
    Column("Groups", "groups", units.count),
    Column("Topics", "topics", units.count),
    Column("Created", "created_at", units.ago, plain=units.iso),
]
SHOW = [
    Column("Id", "customer_id"),
    Column("Terminals", "terminals", units.count),
    Column("Groups", "groups", units.count),
    Column("Topics", "topics", units.count),
    Column("Directory", "directory_version", units.count),
    Column("Created", "created_at", units.ago, plain=units.iso),
]
CREDENTIALS = [
    Column("Credential", "credential_id", style="cyan"),
    Column("Created", "created_at", units.ago, plain=units.iso),
]

Operator = Annotated[
    str | None,
    typer.Option(metavar="CONTEXT", help="Where the credential of the registry's operator is."),
]
Named = Annotated[
    str, typer.Argument(metavar="CUSTOMER", help="The customer's name or id.", show_default=False)
]
ShowToken = Annotated[bool, typer.Option("--show-token", help="Print the credential too.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.", show_default=False)],
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save its credential as this context.", show_default="its name"),
    ] = None,
    show_token: ShowToken = False,
    operator: Operator = None,
    json: Json = False,
) -> None:
    """Create a customer. Its admin credential is saved as a context; the registry can't show it again.

    \b
    Examples:
      landbridge customer create acme
    """
    access = registry_access.operator(operator)
    chosen = context or name
    if chosen in contexts.names():
        raise ContextTaken(
            f"there is a context {chosen} already", hint="choose another with --context, or remove it first"
        )
    made = registry_access.ask(access, lambda client: client.create_message_bus_customer(name))
    save(chosen, Context("", "", access.ca, registry=access.url, registry_token=made.token))
    if contexts.current() is None:
        contexts.use(chosen)
    current = contexts.current() == chosen
    result = {"customer_id": made.customer_id, "name": name, "context": chosen, "current": current}
    if show_token:
        result["token"] = made.token

    def show(_: Any) -> None:
        output.done(f"the customer {name} is {made.customer_id}; its credential is in the context {chosen}")
        if show_token:
            print(made.token)
        suffix = "" if current else f" --context {chosen}"
        output.note(f"next: landbridge terminal create NAME --write NAME.yml{suffix}")

    output.emit(result, show)


@app.command("list")
def list_customers(operator: Operator = None, json: Json = False) -> None:
    """List the customers of a registry, as its operator.

    \b
    Examples:
      landbridge customer list
    """

    async def work(client: RegistryClient) -> Any:
        return await registry_access.everything(client.list_message_bus_customers)

    rows = registry_access.plain(registry_access.ask(registry_access.operator(operator), work))
    empty = "no customers yet: 'landbridge customer create NAME'"
    output.emit(rows, lambda rows: output.table(LIST, rows, empty=empty))


@app.command()
def show(context: ContextName = None, json: Json = False) -> None:
    """Show the customer of a context, and its credentials by their ids.

    \b
    Examples:
      landbridge customer show
    """
    access = registry_access.admin(context)
    found = registry_access.ask(access, lambda client: client.show_message_bus_customer())
    output.emit(registry_access.plain(found), _show)


def _show(customer: dict[str, Any]) -> None:
    output.record(customer["name"], SHOW, customer)
    print()
    output.table(CREDENTIALS, customer["credentials"], empty="  no credentials")


@app.command()
def update(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call it from now on.")],
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Change a customer's name.

    \b
    Examples:
      landbridge customer update --name acme-europe
    """
    access = registry_access.admin(context)
    found = registry_access.ask(access, lambda client: client.update_message_bus_customer(name))
    output.emit(registry_access.plain(found), lambda _: output.done(f"the customer is called {name}"))


@app.command()
def remove(
    customer: Named,
    force: Annotated[bool, typer.Option("--force", help="Also with messages on their way.")] = False,
    operator: Operator = None,
    json: Json = False,
) -> None:
    """Remove a customer with its terminals, groups, topics and keys, for good. As the operator.

    \b
    Examples:
      landbridge customer remove acme
    """
    if not force:
        output.confirm(f"Remove the customer {customer} with all that it has?")

    async def work(client: RegistryClient) -> str:
        found = await _find(client, customer)
        await client.remove_message_bus_customer(found, force=force)
        return found

    removed = registry_access.ask(registry_access.operator(operator), work)
    output.emit({"removed": removed}, lambda _: output.done(f"the customer {customer} is removed"))


@app.command()
def rotate(show_token: ShowToken = False, context: ContextName = None, json: Json = False) -> None:
    """A new credential for the customer of a context, saved there. The one before stays good until 'revoke'.

    \b
    Examples:
      landbridge customer rotate
    """
    access = registry_access.admin(context)
    made = registry_access.ask(access, lambda client: client.rotate_message_bus_customer_credential())
    name = context or contexts.current()
    if name is None:  # the credential came from the environment
        _tell_credential(made.credential_id, made.token, "nowhere: keep it", show_token=True)
        return
    from msgspec.structs import replace

    save(name, replace(contexts.load(name), registry_token=made.token))
    _tell_credential(made.credential_id, made.token, f"in the context {name}", show_token=show_token)


@app.command()
def reset(
    customer: Named,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="Save it in this context.", show_default="its name")
    ] = None,
    show_token: ShowToken = False,
    operator: Operator = None,
    json: Json = False,
) -> None:
    """A new credential for a customer that has lost its own; all others end. As the operator.

    \b
    Examples:
      landbridge customer reset acme
    """
    access = registry_access.operator(operator)

    async def work(client: RegistryClient) -> Any:
        return await client.reset_message_bus_customer_credential(await _find(client, customer))

    made = registry_access.ask(access, work)
    chosen = context or customer
    from msgspec.structs import replace

    try:
        found = contexts.load(chosen)
    except BadContext:
        found = Context("", "", access.ca)
    save(chosen, replace(found, registry=access.url, registry_token=made.token))
    _tell_credential(made.credential_id, made.token, f"in the context {chosen}", show_token=show_token)


def _tell_credential(credential_id: str, token: str, where: str, *, show_token: bool) -> None:
    result = {"credential_id": credential_id, **({"token": token} if show_token else {})}

    def show(_: Any) -> None:
        output.done(f"the credential {credential_id} is {where}")
        if show_token:
            print(token)

    output.emit(result, show)


@app.command()
def revoke(context: ContextName = None, json: Json = False) -> None:
    """End all credentials of the customer but the one of this context.

    \b
    Examples:
      landbridge customer rotate && landbridge customer revoke
    """
    access = registry_access.admin(context)
    found = registry_access.ask(access, lambda client: client.revoke_message_bus_customer_credentials())
    output.emit(registry_access.plain(found), lambda _: output.done("all other credentials have ended"))


async def _find(client: RegistryClient, name: str) -> str:
    known = await registry_access.everything(client.list_message_bus_customers)
    for customer in known:
        if name in (customer.customer_id, customer.name):
            return customer.customer_id
    raise UnknownCustomer(f"there is no customer {name[:100]!r}", hint="see 'landbridge customer list'")
