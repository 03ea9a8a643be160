"""What terminals report of their links and of the messages they hold. The registry is one more neighbour: it
keeps the newest word of each, as it was signed, and never decides a route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.routing.linkstate import SignedLinkState, Verifier
from landbridge.core.trust.directory import Directory, TerminalEntry
from landbridge.errors import BadRequest, BusError
from landbridge.registry.account import Account, Change, Report
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Held, Terminal

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry

_SECOND = 1_000_000


class Topologies:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def report(self, caller: Caller, request: api.PostLinkState) -> None:
        account = caller.account
        assert account is not None
        signed = SignedLinkState(request.body, request.signature)
        try:
            state = _verifier(account, account.terminal(caller.terminal))(signed)
            held = self._held(request.held)
        except BusError as error:
            await self._registry.refuse(caller, "postLinkState", caller.terminal, error)
            raise
        known = account.reports.get(caller.terminal)
        if known is not None and state.age <= known.state.age:
            return  # a late one: what it holds is out of date too
        account.reports[caller.terminal] = Report(self._registry.clock(), signed, state)
        await self._keep(caller, account, held)

    def show(self, account: Account) -> api.Topology:
        since = self._registry.clock() - round(self._registry.limits.link_state_life * _SECOND)
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

    def _held(self, given: dict[str, int]) -> dict[str, int]:
        if len(given) > self._registry.limits.max_topics:
            raise BadRequest(f"messages of {len(given)} topics")
        if any(count < 0 for count in given.values()):
            raise BadRequest("a negative number of messages")
        return {topic: count for topic, count in given.items() if count}

    async def _keep(self, caller: Caller, account: Account, topics: dict[str, int]) -> None:
        """In memory always; on disk where the topics are others than before. Counts change all the time, and
        that a terminal holds something is what matters when it is away."""
        known = account.held.get(caller.terminal)
        held = Held(terminal=caller.terminal, topics=topics)
        if (known.topics.keys() if known is not None else set()) == topics.keys():
            if known is not None:
                account.held[caller.terminal] = held
            return

        def work(change: Change) -> None:
            account.terminal(caller.terminal)  # not removed meanwhile
            change.detail = " ".join(topics)
            if topics:
                change.put(held, in_directory=False)
            else:
                change.drop(account.held.get(caller.terminal), in_directory=False)

        await self._registry.change(caller, "postLinkState", caller.terminal, work)


def _verifier(account: Account, terminal: Terminal) -> Verifier:
    """Of what this terminal says about itself: to it, every other origin is unknown."""
    entry = TerminalEntry(id=terminal.id, name=terminal.name, mode=terminal.mode, keys=terminal.keys)
    return Verifier(Directory(customer=account.id, version=0, terminals=[entry]))
