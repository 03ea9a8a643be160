"""Joining: a terminal becomes one of a customer's."""

from __future__ import annotations

from landbridge.broker.server import Terminal
from landbridge.core.trust.identity import SecureKey
from landbridge.crossing.ground import RegistryPort, Settings
from landbridge.crossing.inquiries import Inquiries
from landbridge.crossing.network import Network


async def join(
    terminal: Terminal,
    customer: str,
    id: str,
    key: SecureKey,
    registry: RegistryPort,
    registry_key: bytes,
    settings: Settings | None = None,
) -> Network:
    """Link a terminal to the customer's others, so that groups can cross, and answer questions about that."""
    network = Network(terminal.broker, customer, id, key, registry, registry_key, settings)
    # Before the network is open: the directory that is on disk counts at once.
    terminal.authority.registered = network.registered
    network.on_tokens = terminal.check_tokens
    await network.open()
    terminal.outcomes.join(id)
    Inquiries(network, terminal).register(terminal.operations)
    return network
