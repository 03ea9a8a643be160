"""What terminals report of their links and of the messages they hold. To terminals the registry is one more
neighbour: it keeps the newest link state of each, as it was signed, and never decides a route.
"""

from __future__ import annotations

from landbridge.client import registry_documents as api
from landbridge.core.routing.linkstate import SignedLinkState, Verifier
from landbridge.core.trust.directory import Directory, TerminalEntry
from landbridge.errors import BadRequest, BusError
from landbridge.registry.account import Account, LinkReport
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import Held, TerminalRecord
from landbridge.registry.limits import microseconds
from landbridge.registry.state import RegistryState


class Topologies:
    """Link states of all customers."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    async def report(self, caller: Caller, request: api.PostLinkState) -> None:
        """Keep the link state of the terminal that asks, and what it holds."""
        account = caller.own_account
        signed = SignedLinkState(request.body, request.signature)
        try:
            state = _verifier(account, account.terminal(caller.terminal))(signed)
            held = self._check_held(request.held)
        except BusError as error:
            await self._state.refuse(caller, "postLinkState", caller.terminal, error)
            raise
        known = account.reports.get(caller.terminal)
        if known is not None and state.age <= known.state.age:
            return  # a newer report came first, so the messages of this one are out of date too
        account.reports[caller.terminal] = LinkReport(self._state.clock(), signed, state)
        await self._keep(caller, account, held)

    def show(self, caller: Caller, _: api.Request) -> api.Topology:
        """Show the newest link states, and forget those that are too old."""
        account = caller.own_account
        since = self._state.clock() - microseconds(self._state.limits.link_state_life)
        for id in [id for id, report in account.reports.items() if report.received_at <= since]:
            del account.reports[id]
        return api.Topology(
            items=[
                api.ReportedLinks(
                    terminal_id=id,
                    received_at=report.received_at,
                    body=report.signed.body,
                    signature=report.signed.signature,
                    epoch=report.state.epoch,
                    sequence=report.state.sequence,
                    links=report.state.links,
                    held=account.held[id].topics if id in account.held else {},
                )
                for id, report in sorted(account.reports.items())
            ]
        )

    def _check_held(self, given: dict[str, int]) -> dict[str, int]:
        if len(given) > self._state.limits.max_topics:
            raise BadRequest(f"messages of {len(given)} topics")
        if any(count < 0 for count in given.values()):
            raise BadRequest("a negative number of messages")
        return {topic: count for topic, count in given.items() if count}

    async def _keep(self, caller: Caller, account: Account, topics: dict[str, int]) -> None:
        """Keep what a terminal holds: in memory always, on disk if the set of topics has changed. Counts
        change all the time; while a terminal is away it only matters which topics it holds messages of."""
        known = account.held.get(caller.terminal)
        held = Held(terminal=caller.terminal, topics=topics)
        if (known.topics.keys() if known is not None else set()) == topics.keys():
            if known is not None:
                account.held[caller.terminal] = held
            return

        def work(change: Change) -> None:
            account.terminal(caller.terminal)  # it may have been removed meanwhile
            change.detail = " ".join(topics)
            if topics:
                change.put(held, in_directory=False)
            else:
                change.drop(account.held.get(caller.terminal), in_directory=False)

        await self._state.change(caller, "postLinkState", caller.terminal, work)


def _verifier(account: Account, terminal: TerminalRecord) -> Verifier:
    """Return a verifier that knows this terminal alone: it accepts only what the terminal says of itself."""
    entry = TerminalEntry(id=terminal.id, name=terminal.name, mode=terminal.mode, keys=terminal.keys)
    return Verifier(Directory(customer=account.id, version=0, terminals=[entry]))
