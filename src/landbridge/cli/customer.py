"""``landbridge customer``: the tenants of a registry. Its operator makes and removes them; each looks after
its own credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from landbridge.cli import output, registry_access, registry_services
from landbridge.cli.options import Commands, ContextName, argument, flag, option
from landbridge.cli.output import columns
from landbridge.cli.registry_access import as_admin, change, everything
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import BadContext, ContextTaken, UnknownCustomer

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient
    from landbridge.client.registry_documents import CreatedCredential, Customer

app = Commands(no_args_is_help=True, help="Customers: the tenants of a registry. Nothing is shared.")

app.add_typer(registry_services.app, name="service")

LIST = columns(
    "Customer=name@cyan | Id=customer_id | Terminals:count | Groups:count | Topics:count | Services:count | "
    "Created=created_at:moment"
)
SHOW = [*LIST[1:-1], *columns("Directory=directory_version:count"), LIST[-1]]
CREDENTIALS = columns("Credential=credential_id@cyan | Created=created_at:moment")

Operator = Annotated[
    str | None, option("Where the credential of the registry's operator is.", metavar="CONTEXT")
]
Named = Annotated[str, argument("CUSTOMER", "The customer's name or id.")]
ShowToken = Annotated[bool, flag("Print the credential too.", "--show-token")]


@app.command()
def create(
    name: Annotated[str, argument("NAME", "What to call it.")],
    context: str | None = option("Save its credential as this context.", metavar="NAME", default="its name"),
    show_token: ShowToken = False,
    operator: Operator = None,
) -> None:
    """Create a customer. Its admin credential is saved as a context; the registry can't show it again.

    Examples:
      landbridge customer create acme
    """
    access = registry_access.operator(operator)
    chosen = context or name
    if chosen in contexts.names():
        raise ContextTaken(
            f"there is a context {chosen} already", hint="choose another with --context, or remove it first"
        )
    made = access.ask(lambda client: client.create_message_bus_customer(name))
    contexts.save(chosen, Context("", "", access.ca, registry=access.url, registry_token=made.token))
    if contexts.current() is None:
        contexts.use(chosen)
    current = contexts.current() == chosen
    result = {
        "customer_id": made.customer_id, "name": name, "registry": access.url, "context": chosen,
        "current": current,
    }  # fmt: skip
    if show_token:
        result["token"] = made.token

    def show(_: Any) -> None:
        where = f"its credential is in the context {chosen}"
        output.done(f"the customer {name} is {made.customer_id} at {access.url}; {where}")
        if not current:
            print(f"the current context is {contexts.current()}: give --context {chosen} to act for {name}")
        if show_token:
            print(made.token)
        suffix = "" if current else f" --context {chosen}"
        output.note(f"next: landbridge terminal create NAME --write NAME.yml{suffix}")

    output.emit(result, show)


@app.command("list")
def list_customers(operator: Operator = None) -> None:
    """List the customers of a registry, as its operator.

    Examples:
      landbridge customer list
    """
    access = registry_access.operator(operator)
    rows = access.ask(lambda client: everything(client.list_message_bus_customers))
    output.rows(LIST, rows, empty="no customers yet: 'landbridge customer create NAME'")


@app.command()
def show(context: ContextName = None) -> None:
    """Show the customer of a context, and its credentials by their ids.

    Examples:
      landbridge customer show
    """
    output.emit(as_admin(context, lambda client: client.show_message_bus_customer()), _show)


def _show(customer: Customer) -> None:
    row = output.fields(customer)
    output.record(customer.name, SHOW, row)
    print()
    output.table(CREDENTIALS, row["credentials"], empty="  no credentials")


@app.command()
def update(
    name: Annotated[str, option("What to call it from now on.", "--name", metavar="NAME")],
    context: ContextName = None,
) -> None:
    """Change a customer's name.

    Examples:
      landbridge customer update --name acme-europe
    """
    change(
        context,
        lambda client: client.update_message_bus_customer(name),
        lambda found: f"{found.customer_id} is called {name}",
    )


@app.command()
def remove(
    customer: Named,
    force: bool = flag("Also with messages on their way.", "--force"),
    operator: Operator = None,
) -> None:
    """Remove a customer with its terminals, groups, topics and keys, for good. As the operator.

    Examples:
      landbridge customer remove acme
    """
    if not force:
        output.confirm(f"Remove the customer {customer} with all that it has?")

    async def work(client: RegistryClient) -> str:
        found = await _find(client, customer)
        await client.remove_message_bus_customer(found, force=force)
        return found

    access = registry_access.operator(operator)
    removed = access.ask(work)
    output.tell(
        {"removed": removed, "registry": access.url}, f"{access.url} has no customer {customer} any more"
    )


@app.command()
def rotate(show_token: ShowToken = False, context: ContextName = None) -> None:
    """A new credential for the customer of a context, saved there. The one before stays good until 'revoke'.

    Examples:
      landbridge customer rotate
    """
    made = as_admin(context, lambda client: client.rotate_message_bus_customer_credential())
    name = context or contexts.current()
    if name is None:  # the credential came from the environment
        _tell_credential(made, "nowhere: keep it", show_token=True)
        return
    contexts.save(name, replace(contexts.load(name), registry_token=made.token))
    _tell_credential(made, f"in the context {name}", show_token=show_token)


@app.command()
def reset(
    customer: Named,
    context: str | None = option("Save it in this context.", metavar="NAME", default="its name"),
    show_token: ShowToken = False,
    operator: Operator = None,
) -> None:
    """A new credential for a customer that has lost its own; all others end. As the operator.

    Examples:
      landbridge customer reset acme
    """
    access = registry_access.operator(operator)

    async def work(client: RegistryClient) -> CreatedCredential:
        return await client.reset_message_bus_customer_credential(await _find(client, customer))

    made = access.ask(work)
    chosen = context or customer
    try:
        found = contexts.load(chosen)
    except BadContext:
        found = Context("", "", access.ca)
    contexts.save(chosen, replace(found, registry=access.url, registry_token=made.token))
    _tell_credential(made, f"in the context {chosen}", show_token=show_token)


def _tell_credential(made: CreatedCredential, where: str, *, show_token: bool) -> None:
    shown = {"credential_id": made.credential_id} | ({"token": made.token} if show_token else {})
    output.tell(shown, f"the credential {made.credential_id} is {where}")
    if show_token and not output.choice.json:
        print(made.token)


@app.command()
def revoke(context: ContextName = None) -> None:
    """End all credentials of the customer but the one of this context.

    Examples:
      landbridge customer rotate && landbridge customer revoke
    """
    change(
        context,
        lambda client: client.revoke_message_bus_customer_credentials(),
        lambda _: "all other credentials have ended",
    )


async def _find(client: RegistryClient, name: str) -> str:
    for customer in await everything(client.list_message_bus_customers):
        if name in (customer.customer_id, customer.name):
            return customer.customer_id
    raise UnknownCustomer(f"there is no customer {name[:100]!r}", hint="see 'landbridge customer list'")
