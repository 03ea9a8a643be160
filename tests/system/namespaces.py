"""A network of namespaces: places that reach each other through one router, and the faults that the router
makes. It is all inside namespaces of its own, named by this process, and gone when the block is left.

    place ── wan ─ 10.99.N.0/24 ─ router ─ … ── another place        the router loses, drops and resets

Takes root, ``ip`` and ``nft``. Delay isn't here (many kernels have no netem): testing.wan makes that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import count
from typing import Any, TypeAlias

import pytest

TOOLS = ("ip", "nft")
#: Two networks of one process have names of their own.
_numbers = count(1)

#: From a place, to a place.
Way: TypeAlias = tuple[str, str]

#: What the router may do to the packets of a way, as nftables has it. It counts those that it does it to.
DROP = "counter drop"
#: Whoever sends gets the reset: so it takes one on each way to end both ends.
RESET = "meta l4proto tcp counter reject with tcp reset"


def loss(percent: int) -> str:
    return f"numgen random mod 100 < {percent} counter drop"


class Namespaces:
    """``places``: names, short ones. Skips the test where a network can't be made."""

    def __init__(self, *places: str) -> None:
        self._prefix = f"lb{os.getpid()}n{next(_numbers)}"
        self._places = places
        #: Those that there are, to be removed.
        self._made: list[str] = []
        #: What the router does on a way; none: it passes everything on.
        self._faults: dict[Way, str] = {}

    def __enter__(self) -> Namespaces:
        if os.geteuid() != 0:
            pytest.skip("making network namespaces takes root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            pytest.skip(f"making a bad network takes {' and '.join(missing)} (packages iproute2, nftables)")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"can't make network namespaces here: {' '.join(error.cmd)}: {error.stderr.strip()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        """What is in a namespace goes with it, once no process is left in it."""
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False, capture_output=True)

    def _make(self) -> None:
        router = self._namespace("router")
        for number, place in enumerate(self._places, 1):
            here = self._namespace(place)
            # Both ends are made where they belong: the machine's own network never sees them.
            _run(f"ip link add wan netns {here} type veth peer name to{number} netns {router}")
            _run(f"ip -n {router} address add 10.99.{number}.1/24 dev to{number}")
            _run(f"ip -n {router} link set to{number} up")
            _run(f"ip -n {here} address add {self.address(place)}/24 dev wan")
            _run(f"ip -n {here} link set wan up")
            _run(f"ip -n {here} route add default via 10.99.{number}.1")
        _run(f"ip netns exec {router} tee /proc/sys/net/ipv4/ip_forward", "1")
        self._rule(
            "add table inet faults", "add chain inet faults ways { type filter hook forward priority 0; }"
        )

    def _namespace(self, place: str) -> str:
        name = f"{self._prefix}-{place}"
        _run(f"ip netns add {name}")
        self._made.append(name)
        _run(f"ip -n {name} link set lo up")
        return name

    def address(self, place: str) -> str:
        return f"10.99.{self._places.index(place) + 1}.2"

    def command(self, place: str, *command: object) -> list[str]:
        """To run this there. The process is the command's own, with no other between."""
        return ["ip", "netns", "exec", f"{self._prefix}-{place}", *map(str, command)]

    # -- faults ------------------------------------------------------------------------------------

    def spoil(self, fault: str, *ways: Way) -> None:
        """This happens on these ways from now on, in place of what did; on all others nothing changes."""
        self._faults |= dict.fromkeys(ways, fault)
        self._apply()

    def heal(self) -> int:
        """How many packets the faults have hit: one that hit none was no fault."""
        listed = _run(
            " ".join(self.command("router", "nft", "-j", "list", "chain", "inet", "faults", "ways"))
        )
        self._faults.clear()
        self._apply()
        rules = [entry["rule"]["expr"] for entry in json.loads(listed)["nftables"] if "rule" in entry]
        return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)

    def ways(self) -> list[Way]:
        """All there are."""
        return [(here, there) for here in self._places for there in self._places if here != there]

    def _apply(self) -> None:
        """In one transaction: no packet sees half of it."""
        rules = ["flush chain inet faults ways"]
        for (here, there), fault in self._faults.items():
            way = f"ip saddr {self.address(here)} ip daddr {self.address(there)}"
            rules.append(f"add rule inet faults ways {way} {fault}")
        self._rule(*rules)

    def _rule(self, *lines: str) -> None:
        _run(" ".join(self.command("router", "nft", "-f", "-")), "\n".join(lines))


def both(here: str, there: str) -> tuple[Way, Way]:
    """A line, as the two ways that it is."""
    return (here, there), (there, here)


def _run(command: str, said: str = "") -> str:
    """What it prints."""
    return subprocess.run(command.split(), input=said, check=True, capture_output=True, text=True).stdout
