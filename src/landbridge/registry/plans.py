"""Long-term plans: one for each customer, made elsewhere from measurements of its links, and stored here.
The registry decides no route by it. Terminals get its costs with their directory.
"""

from __future__ import annotations

import asyncio

from landbridge.client import registry_documents as api
from landbridge.core.routing import plan as plans
from landbridge.core.routing.graph import Mesh
from landbridge.core.routing.plan import Plan
from landbridge.core.wording import counted
from landbridge.errors import UnknownPlan
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.customers import Customers
from landbridge.registry.entities import LongTermPlan
from landbridge.registry.state import RegistryState


class Plans:
    """Operations on long-term plans."""

    def __init__(self, state: RegistryState, customers: Customers) -> None:
        self._state = state
        self._customers = customers

    def put(self, change: Change, request: api.PutPlan | api.PutCustomerPlan) -> api.StoredPlan:
        """Replace the plan of the account. Links of terminals that the registry doesn't know are left out."""
        plan = request.plan
        plans.check(plan, self._state.limits.max_terminals)
        left = plans.restricted(plan, _present(change.account))
        change.detail = (
            f"{counted(len(left.links), 'link')}, {counted(len(left.single_points), 'single point')}; "
            f"left out: {counted(len(plan.links) - len(left.links), 'link')} of unknown terminals"
        )
        kept = change.put(LongTermPlan(made_at=change.now, plan=left))
        return api.StoredPlan(made_at=kept.made_at, plan=kept.plan)

    def put_for_customer(self, change: Change, request: api.PutCustomerPlan) -> api.StoredPlan:
        """Replace the plan of any customer, by the operator, who has one job for all of them."""
        change.open_account(self._customers.account(request.customer))
        return self.put(change, request)

    def show(self, caller: Caller, _: api.Request) -> api.StoredPlan:
        """Show the plan, without terminals that were removed or revoked since."""
        for kept in caller.own_account.plans.values():
            plan = plans.restricted(kept.plan, _present(caller.own_account))
            return api.StoredPlan(made_at=kept.made_at, plan=plan)
        raise UnknownPlan("there is no long-term plan of this customer's links yet")

    async def paths(self, caller: Caller, request: api.OfTerminal) -> api.PlannedPaths:
        """Show the best paths from a terminal by the plan. Found in a thread: ten thousand terminals take a
        while."""
        terminal = caller.own_account.terminal(request.terminal)
        plan = self.show(caller, api.Request()).plan
        return await asyncio.to_thread(_paths, plan, terminal.id)


def _present(account: Account) -> set[str]:
    return {id for id, terminal in account.terminals.items() if not terminal.revoked_at}


def _paths(plan: Plan, terminal: str) -> api.PlannedPaths:
    if terminal not in plan.terminals:
        return api.PlannedPaths(items=[])
    mesh = Mesh(plan.terminals, [(link.here, link.there, link.cost) for link in plan.links])
    names = mesh.names
    items = [
        api.PlannedPath(
            terminal_id=names[there],
            hops=[names[hop] for hop in block.hops[block.firsts[row] : block.firsts[row + 1]]],
            cost=float(block.costs[row]),
        )
        for block in mesh.paths(terminal)
        for row, there in enumerate(block.destinations)
    ]
    return api.PlannedPaths(items=sorted(items, key=lambda item: item.terminal_id))
