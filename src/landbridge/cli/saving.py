"""Into a context: a token or a credential that is not to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.errors import ContextTaken

if TYPE_CHECKING:
    from landbridge.client.context import Context


def place_for(save_as: str | None, context: str | None) -> Context | None:
    """The context to be saved, but for its token; None where nothing is to be saved. ContextTaken where
    another context has the name and would lose something."""
    from landbridge.client import context as contexts
    from landbridge.client.context import Context, resolve

    if save_as is None:
        return None
    here = resolve(context=context)
    if save_as in contexts.names():
        found = contexts.load(save_as)
        if found != Context(here.url, found.token, here.ca):
            raise ContextTaken(
                f"the context {save_as} has more than a token for {here.url}, and would lose it",
                hint=f"save it under another name, or remove that one: 'landbridge context remove {save_as}'",
            )
    return Context(here.url, "", here.ca)


def save(save_as: str, place: Context, token: str) -> None:
    """Save a context with this token."""
    from msgspec.structs import replace

    from landbridge.client import context as contexts

    contexts.save(save_as, replace(place, token=token))
