"""How a terminal belongs to a customer: what is done for that around the terminal's start and end."""

from __future__ import annotations

import ssl

from landbridge.broker.server import Terminal
from landbridge.client.context import Context
from landbridge.node.listening import Endpoint
from landbridge.node.site import App


class Membership:
    """This one belongs to none: it stands alone. The others are ``member.Member``, of a registry elsewhere,
    and ``embedded.Embedded``, which has the registry with it."""

    #: Where its registry is; empty where there is none.
    registry_url = ""
    #: By the registry's ids; empty where there is none.
    customer = terminal = ""

    def app(self) -> App | None:
        """The HTTP of the registry that is with it."""
        return None

    def tls(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """To listen with; None: in the clear. Called first of all, and refuses what can't be."""
        return endpoint.tls()

    async def open(self, terminal: Terminal) -> None:
        """Before the terminal listens."""

    def endpoint(self, given: Endpoint) -> Endpoint:
        """As others see it, after open()."""
        return given

    async def join(self, terminal: Terminal, address: str, http: str | None) -> None:
        """It listens at ``address``, and serves HTTP at ``http`` where it does."""

    async def context(self, found: Context | None, wanted: Context) -> Context:
        """The context to keep: ``wanted``, with what is known of the registry."""
        return wanted

    def stop(self) -> None:
        """Let go of requests that wait: HTTP ends, then the terminal."""

    async def close(self) -> None:
        """After the terminal."""
