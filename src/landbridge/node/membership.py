"""How a terminal belongs to a customer: the steps for that around the terminal's start and end."""

from __future__ import annotations

import ssl

from landbridge.broker.server import Terminal
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import BadContext
from landbridge.node.listening import Endpoint
from landbridge.node.site import App


class Membership:
    """A terminal that belongs to no customer. The subclasses are ``member.MemberOfRegistry``, whose
    registry is another process, and ``embedded.Embedded``, whose registry is in the same process."""

    #: The URL of its registry; empty where there is none.
    registry_url = ""
    #: The ids of the customer and of the terminal in the registry; empty where there is none.
    customer = terminal = ""

    def app(self) -> App | None:
        """The HTTP application of the registry in this process; None where there is none."""
        return None

    def tls(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """The TLS context to listen with; None: in the clear. Called first of all. Raises BadRequest for an
        endpoint that can't be used."""
        return endpoint.tls()

    async def check(self) -> None:
        """BadRequest where this process could not become the node that has the registry."""

    async def open(self, terminal: Terminal) -> None:
        """Called before the terminal listens."""

    def endpoint(self, given: Endpoint) -> Endpoint:
        """The endpoint as others see it. Called after open()."""
        return given

    async def join(self, terminal: Terminal, address: str, http: str | None) -> None:
        """Called when the terminal listens at ``address``, and serves HTTP at ``http`` (None: it doesn't)."""

    async def context(self, found: Context | None, wanted: Context) -> Context:
        """The context to save: ``wanted``, with what is known of the registry. ``found``: as it was saved
        before."""
        return wanted

    def stop(self) -> None:
        """End the requests that wait for something: the HTTP port is about to close, then the terminal."""

    async def close(self) -> None:
        """Called after the terminal has closed."""


def find_context(name: str) -> Context | None:
    """The context of this name; None where there is none that can be read."""
    try:
        return contexts.load(name)
    except BadContext:
        return None
