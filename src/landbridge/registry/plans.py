"""Long-term plans: one for each customer, made elsewhere from what its links were like, kept and served here.
The registry decides no route by it. Terminals get its costs with their directory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.log.store import PutDocument
from landbridge.core.routing import plan as plans
from landbridge.core.routing.longterm import Mesh
from landbridge.core.routing.plan import Plan
from landbridge.core.wording import counted
from landbridge.errors import UnknownPlan
from landbridge.registry import codec
from landbridge.registry.account import Account, Change, document_key
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Customer, LongTermPlan

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry


class Plans:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def put(self, caller: Caller, account: Account, plan: Plan) -> api.StoredPlan:
        """By the customer's admin."""

        def work(change: Change) -> None:
            change.put(self._kept(change, account, plan))

        await self._registry.change(caller, "putPlan", "", work)
        return self.show(account)

    async def put_for(self, caller: Caller, customer: str, plan: Plan) -> api.StoredPlan:
        """By the operator, who has one job for all customers."""

        def work(change: Change) -> Account:
            account = self._registry.customers.account(customer)
            kept = self._kept(change, account, plan)
            newer = codec.replace(account.customer, version=account.customer.version + 1)
            writes = [
                PutDocument(kept.kind, document_key(account, kept), codec.encode(kept)),
                PutDocument(Customer.kind, newer.id, codec.encode(newer)),
            ]

            def apply() -> None:
                self._registry.index.put(account, kept)
                self._registry.index.put_customer(account, newer)
                account.announce()

            change.write([*writes], apply)
            return account

        return self.show(await self._registry.change(caller, "putCustomerPlan", customer, work))

    def show(self, account: Account) -> api.StoredPlan:
        kept = self._of(account)
        return api.StoredPlan(made_at=kept.made_at, plan=plans.restricted(kept.plan, _present(account)))

    async def paths(self, account: Account, terminal: str) -> api.PlannedPaths:
        account.terminal(terminal)
        plan = self.show(account).plan
        return await asyncio.to_thread(_paths, plan, terminal)

    def _kept(self, change: Change, account: Account, plan: Plan) -> LongTermPlan:
        plans.check(plan, self._registry.limits.max_terminals)
        left = plans.restricted(plan, _present(account))
        change.detail = (
            f"{counted(len(left.links), 'link')}, {counted(len(left.single_points), 'single point')}; "
            f"left out: {counted(len(plan.links) - len(left.links), 'link')} of unknown terminals"
        )
        return LongTermPlan(made_at=change.now, plan=left)

    @staticmethod
    def _of(account: Account) -> LongTermPlan:
        for kept in account.plans.values():
            return kept
        raise UnknownPlan("there is no long-term plan of this customer's links yet")


def _present(account: Account) -> set[str]:
    return {id for id, terminal in account.terminals.items() if not terminal.revoked_at}


def _paths(plan: Plan, terminal: str) -> api.PlannedPaths:
    """In a thread: ten thousand terminals take a while."""
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
