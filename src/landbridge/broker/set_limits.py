"""Limits that an operator has set while the terminal runs. They are stored, and hold after restarts, whatever
the options of the start say, until they are reset. ``broker/limits.py`` says within which bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.commit import SETTINGS, BrokerCommit
from landbridge.broker.damage import Damage
from landbridge.broker.limits import CEILINGS, Limits, SetLimit, about_limits, check_limit
from landbridge.broker.units import Units
from landbridge.core.log.store import PutDocument, Store

#: The document of the store's settings that has them.
KEY = "limits"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, SetLimit]).decode


class DescribedLimit(NamedTuple):
    """A limit, for people."""

    name: str
    value: int | float
    source: Literal["default", "start", "set"]
    at_start: int | float
    set_by: str
    set_at: int | None
    least: int | float | None
    most: int | float | None
    help: str


class LimitedBroker(Protocol):
    """What they ask of the broker."""

    limits: Limits
    store: Store
    damage: Damage
    clock: Callable[[], int]
    units: Units


class SetLimits:
    def __init__(self, broker: LimitedBroker) -> None:
        self._broker = broker
        #: Those of the start.
        self._at_start = msgspec.structs.replace(broker.limits)
        self._set: dict[str, SetLimit] = {}
        #: Called when limits have other values: for what keeps a value of its own.
        self.on_change: list[Callable[[], None]] = []

    def load(self, settings: Mapping[str, bytes]) -> None:
        """Use what is stored, within the bounds that this version has."""
        lost = "the limits are those of the start: set them again with 'landbridge limits set'"
        raw, none = settings.get(KEY, b"{}"), dict[str, SetLimit]()
        stored = self._broker.damage.decode("the limits that were set", _decode, raw, none, lost)
        self._use({name: found for name, found in stored.items() if name in CEILINGS})

    def _use(self, found: dict[str, SetLimit]) -> None:
        self._set = found
        for name, ceiling in CEILINGS.items():
            at_start = getattr(self._at_start, name)
            value = ceiling.within(found[name].value) if name in found else at_start
            setattr(self._broker.limits, name, type(at_start)(value))
        for follow in self.on_change:
            follow()

    async def change(self, values: Mapping[str, int | float | None], caller: AuditedCaller) -> None:
        """Set limits, all of these or none; None resets. BadRequest for what can't be set."""
        wanted = {name: check_limit(name, value) for name, value in values.items()}
        broker = self._broker

        def work(commit: BrokerCommit) -> None:
            before, after = self._set, dict(self._set)
            for name, value in wanted.items():
                if value is None:
                    after.pop(name, None)
                elif name not in after or after[name].value != value:
                    after[name] = SetLimit(value, caller.subject, commit.now)
            if after == before:
                caller.change_nothing()
                return
            commit.writes.append(PutDocument(SETTINGS, KEY, _encode(after)))
            told = [{name: self._told(each, name) for name in wanted} for each in (before, after)]
            caller.enter(commit, ", ".join(sorted(wanted)), *told, what="limit")
            self._use(after)
            commit.on_failed.append(lambda: self._use(before))

        await broker.units.writers[0].put(work)

    def _told(self, found: dict[str, SetLimit], name: str) -> int | float:
        """The value of a limit, for the audit log."""
        value: int | float = found[name].value if name in found else getattr(self._at_start, name)
        return value

    def describe(self) -> Iterator[DescribedLimit]:
        """All limits, by name."""
        defaults, about = Limits(), about_limits()
        for name in sorted(Limits.__struct_fields__):
            at_start, found, ceiling = getattr(self._at_start, name), self._set.get(name), CEILINGS.get(name)
            yield DescribedLimit(
                name,
                getattr(self._broker.limits, name),
                "set" if found else "default" if at_start == getattr(defaults, name) else "start",
                at_start,
                "" if found is None else found.by,
                None if found is None else found.at,
                None if ceiling is None else ceiling.least,
                None if ceiling is None else ceiling.most,
                about[name],
            )
