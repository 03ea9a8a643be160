"""A service: a bill for every order. A handler that fails is tried again; after five attempts the order goes
to the topic ``orders.dead``, from where ``landbridge group redrive`` brings it back.

cd examples && landbridge run billing:service       or: python examples/billing.py
landbridge publish orders '{"id": 1, "amount": 12.5}'
landbridge subscribe bills
"""

from __future__ import annotations

import asyncio

import msgspec

import landbridge

service = landbridge.Service("billing")


class Order(msgspec.Struct):
    id: int
    amount: float


@service.on("orders", concurrency=8, retry=landbridge.Retry(attempts=5, first=0.5))
async def bill(order: Order, bus: landbridge.Bus) -> None:
    await bus.publish("bills", {"order": order.id, "amount": order.amount})


if __name__ == "__main__":
    asyncio.run(service.run())
