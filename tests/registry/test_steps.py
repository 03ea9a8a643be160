"""The seed's seven steps, in order."""

from __future__ import annotations

from landbridge.core.trust import directory
from landbridge.core.trust.identity import SecureKey
from tests.registry.site import Site


async def test_seven_steps(site: Site) -> None:
    # 1. create customer
    customer = await site.operator.create_message_bus_customer("acme")
    admin = site.client(token=customer.token)
    # 2. create terminals; the secure key is shown once
    paris = await admin.create_terminal("paris", address="lbs://paris.example:7420", region="eu")
    rome = await admin.create_terminal("rome", mode="client")
    assert paris.customer_id == rome.customer_id == customer.customer_id
    assert paris.secure_key is not None
    assert rome.secure_key is not None
    # 3. create terminal group
    await admin.create_terminal_group("warehouse")
    # 4. add terminal(s) to it
    group = await admin.add_terminal_to_group("warehouse", rome.terminal_id)
    assert group.terminals == [rome.terminal_id]
    # 5. create topic
    await admin.create_message_bus_topic("orders")
    # 6. add groups to it
    topic = await admin.add_group_to_topic("orders", "warehouse")
    assert topic.groups == {"warehouse": site.clock()}
    # 7. send: the sender gets the encrypting half and a ticket, the receiver shows the ticket
    sender = site.member(customer.customer_id, paris.terminal_id, SecureKey.parse(paris.secure_key))
    receiver = site.member(customer.customer_id, rome.terminal_id, SecureKey.parse(rome.secure_key))
    frame = sender.seal(await sender.registry.issue("orders"), receiver, b"one order", site.clock())
    assert b"one order" not in frame
    assert await receiver.open(sender, frame, site.clock()) == b"one order"

    signed = await receiver.registry.directory()
    assert signed is not None
    known = directory.verify(signed.directory, paris.registry_key)
    assert {entry.name: entry.mode for entry in known.terminals} == {"paris": "server", "rome": "client"}
    assert known.groups[0].terminals == [rome.terminal_id]
    assert known.topics == []
    (used,) = directory.verify(signed.topics, paris.registry_key).topics
    assert used.groups == {"warehouse": site.clock()}
    assert known.ca.startswith("-----BEGIN CERTIFICATE-----")
