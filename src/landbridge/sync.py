"""``landbridge.sync.connect()``: the bus without async. See landbridge.client.sync."""

from landbridge.client.sync import Bus, DeliveredBatch, Message, Publisher, Subscription, Transaction, connect

__all__ = ["Bus", "DeliveredBatch", "Message", "Publisher", "Subscription", "Transaction", "connect"]
