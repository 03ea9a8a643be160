"""How often one address may ask for something: a bucket of tokens for each address that has asked lately."""

from __future__ import annotations

from collections import OrderedDict

from landbridge.core.time import SECOND

#: Addresses that are remembered. One that is forgotten begins anew.
MOST_ADDRESSES = 10_000


class AddressRate:
    """Lets each address do something ``most`` times at once, then ``most`` times in ``within`` seconds."""

    def __init__(self, most: int, within: float) -> None:
        self._most = most
        self._each = int(within * SECOND) // most
        #: Address → when its bucket is full again, microseconds. Who has asked last stands last.
        self._full_at: OrderedDict[str, int] = OrderedDict()

    def take(self, now: int, address: str) -> bool:
        """Count a request. False: it is one too many, and doesn't count."""
        # At most an empty bucket, also if somebody has set the clock back.
        full_at = min(max(now, self._full_at.pop(address, now)), now + self._most * self._each)
        allowed = full_at + self._each - now <= self._most * self._each
        self._full_at[address] = full_at + self._each if allowed else full_at
        if len(self._full_at) > MOST_ADDRESSES:
            self._full_at.popitem(last=False)
        return allowed
