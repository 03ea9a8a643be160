"""From a command to the registry: which one, as whom, and terminals by their names.

A context may hold two credentials for a registry: its customer's (``registry_token``) and the operator's
(``operator_token``). What is set in LANDBRIDGE_REGISTRY and LANDBRIDGE_REGISTRY_TOKEN wins over contexts that
aren't named.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from landbridge.cli import output
from landbridge.cli.loop import run
from landbridge.client import context as contexts
from landbridge.core.wording import did_you_mean
from landbridge.errors import BadContext, BusError, StillHolds, UnknownTerminal

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient
    from landbridge.client.registry_documents import RegisteredTerminal

T = TypeVar("T")
#: Items of a list that are asked for at a time.
PAGE = 1000


class RegistryCredential(NamedTuple):
    """Which registry, and as whom."""

    url: str
    token: str
    #: A file with the certificates to trust; None: the system's.
    ca: str | None

    def ask(self, work: Callable[[RegistryClient], Awaitable[T]]) -> T:
        """Connect, ask the registry, leave. Returns its answer."""
        from landbridge.client.registry import RegistryClient

        async def main() -> T:
            async with RegistryClient(self.url, token=self.token, ca=self.ca) as client:
                try:
                    return await work(client)
                except StillHolds as error:
                    error.hint = "let them be delivered first, or repeat it with --force to give them up"
                    raise

        return run(main())


def admin(context: str | None) -> RegistryCredential:
    """As the customer of a context."""
    if context is None and (said := _said()) is not None:
        return said
    name = context or contexts.current()
    if name is None:
        raise BadContext(
            "nothing says which customer this is for",
            hint="make one with 'landbridge customer create NAME', or name a context with --context",
        )
    found = contexts.load(name)
    if not found.registry or not found.registry_token:
        raise BadContext(
            f"the context {name} has no credential of a customer",
            hint="name another with --context, or make one with 'landbridge customer create NAME'",
        )
    return RegistryCredential(found.registry, found.registry_token, found.ca)


def known_registry(context: str | None) -> tuple[str, str | None]:
    """Where the registry of a context is, and the certificates to trust: for who needs no credential of a
    customer's or the operator's."""
    url = os.environ.get("LANDBRIDGE_REGISTRY")
    if context is None and url:
        return url, os.environ.get("LANDBRIDGE_REGISTRY_CA")
    name = context or contexts.current()
    found = None if name is None else contexts.load(name)
    if found is None or not found.registry:
        raise BadContext("nothing says where the registry is", hint="give --registry URL")
    return found.registry, found.ca


def operator(context: str | None) -> RegistryCredential:
    """As the operator of a registry: of the context that is named, else of the only registry that contexts
    have such a credential for."""
    if context is None and (said := _said()) is not None:
        return said
    hint = "'landbridge registry' and 'landbridge up' make one where they run; name it with --operator"
    if context is None:
        # Several contexts may lead to one registry. Where they lead to several, the current context says
        # nothing about which one is meant: it is chosen for its terminal.
        known = [name for name in contexts.names() if _is_operator(name)]
        registries = {contexts.load(name).registry for name in known}
        current = contexts.current()
        if len(registries) == 1:
            context = current if current in known else known[0]
        else:
            which = f"several contexts have one: {', '.join(known)}" if known else "no context has one"
            raise BadContext(f"this needs the credential of a registry's operator; {which}", hint=hint)
    assert context is not None
    found = contexts.load(context)
    if not found.registry or not found.operator_token:
        raise BadContext(f"the context {context} has no credential of a registry's operator", hint=hint)
    return RegistryCredential(found.registry, found.operator_token, found.ca)


def _said() -> RegistryCredential | None:
    url, token = os.environ.get("LANDBRIDGE_REGISTRY"), os.environ.get("LANDBRIDGE_REGISTRY_TOKEN")
    return RegistryCredential(url, token, os.environ.get("LANDBRIDGE_REGISTRY_CA")) if url and token else None


def _is_operator(name: str) -> bool:
    try:
        return contexts.load(name).operator_token is not None
    except BusError:
        return False


def change(
    context: str | None,
    work: Callable[[RegistryClient], Awaitable[T]],
    text: Callable[[T], str],
    result: Callable[[T], dict[str, Any]] = output.fields,
) -> T:
    """Change something as the customer of a context, and tell of it: whose it is now, and in which registry.
    ``result``: what programs are told. Returns the registry's answer."""

    async def both(client: RegistryClient) -> tuple[T, str]:
        done = await work(client)
        return done, (await client.show_message_bus_customer()).name

    access = admin(context)
    done, customer = access.ask(both)
    place = {"customer": customer, "registry": access.url}
    output.tell(result(done) | place, f"{text(done)} (customer {customer} at {access.url})")
    return done


def change_terminal(
    context: str | None,
    terminal: str,
    work: Callable[[RegistryClient, str], Awaitable[T]],
    text: Callable[[T], str],
    result: Callable[[T], dict[str, Any]] = output.fields,
) -> T:
    """Like ``change``. ``work`` gets the id of the terminal that has this name or id."""

    async def found(client: RegistryClient) -> T:
        return await work(client, await find_terminal(client, terminal))

    return change(context, found, text, result)


def as_admin(context: str | None, work: Callable[[RegistryClient], Awaitable[T]]) -> T:
    """Ask as the customer of a context."""
    return admin(context).ask(work)


def of_terminal(context: str | None, terminal: str, work: Callable[[RegistryClient, str], Awaitable[T]]) -> T:
    """Ask as the customer of a context. ``work`` gets the id of the terminal that has this name or id."""

    async def found(client: RegistryClient) -> T:
        return await work(client, await find_terminal(client, terminal))

    return as_admin(context, found)


class _Page(Protocol[T]):
    """What all lists of the registry answer."""

    @property
    def items(self) -> list[T]: ...
    @property
    def next(self) -> str | None: ...


async def everything(read: Callable[..., Awaitable[_Page[T]]]) -> list[T]:
    """All pages of a list, joined."""
    found: list[T] = []
    after = ""
    while True:
        page = await read(after=after, limit=PAGE)
        found += page.items
        if not page.next:
            return found
        after = page.next


async def terminals(client: RegistryClient) -> list[RegisteredTerminal]:
    """All terminals of the customer."""
    return await everything(client.list_terminals)


async def find_terminals(client: RegistryClient, names: Sequence[str]) -> list[str]:
    """Returns the ids of terminals. ``names``: their ids or names."""
    if not names:
        return []
    known = await terminals(client)
    ids = {terminal.terminal_id for terminal in known}
    by_name = {terminal.name: terminal.terminal_id for terminal in known}
    missing = [name for name in names if name not in ids and name not in by_name]
    if missing:
        raise UnknownTerminal(
            f"there is no terminal {', '.join(missing)[:200]}",
            hint=did_you_mean(missing[0], by_name, "see 'landbridge terminal list'"),
        )
    return [name if name in ids else by_name[name] for name in names]


async def find_terminal(client: RegistryClient, name: str) -> str:
    """Returns the id of a terminal. ``name``: its id or name."""
    [found] = await find_terminals(client, [name])
    return found


async def terminal_names(client: RegistryClient) -> dict[str, str]:
    """Id → name."""
    return {terminal.terminal_id: terminal.name for terminal in await terminals(client)}
