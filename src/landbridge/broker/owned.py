"""Which units of the store this process owns. A terminal without nodes owns all of them; a node owns some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from landbridge.errors import BusError

T = TypeVar("T")


class OwnedUnits(Generic[T]):
    """What there is for each unit that this process owns, by the unit's number. Whoever asks for another
    unit's gets the error that ``why`` makes."""

    def __init__(self, why: Callable[[int], BusError]) -> None:
        self._why = why
        self._found: dict[int, T] = {}

    def __getitem__(self, unit: int) -> T:
        try:
            return self._found[unit]
        except KeyError:
            raise self._why(unit) from None

    def __setitem__(self, unit: int, thing: T) -> None:
        self._found[unit] = thing

    def __contains__(self, unit: object) -> bool:
        return unit in self._found

    def __iter__(self) -> Iterator[T]:
        """Those of all units, in the units' order."""
        return iter([self._found[unit] for unit in sorted(self._found)])

    def __len__(self) -> int:
        return len(self._found)

    @property
    def units(self) -> frozenset[int]:
        return frozenset(self._found)

    def pop(self, unit: int) -> T | None:
        """The unit isn't owned any more."""
        return self._found.pop(unit, None)
