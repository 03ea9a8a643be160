"""A source of random events, and an oracle of what each client has to get. Knows nothing of the code."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def random_lines(seed: int, count: int, users: int, *, first: int = 1) -> list[bytes]:
    """So many events between users 1 to ``users``, in order."""
    dice = random.Random(seed)
    chosen = dice.choices("FUPSB", [30, 10, 30, 20, 10], k=count)
    lines = []
    for number, kind in enumerate(chosen, first):
        sender, receiver = dice.randint(1, users), dice.randint(1, users)
        if kind == "B":
            lines.append(f"{number}|B")
        elif kind == "S":
            lines.append(f"{number}|S|{sender}")
        else:
            lines.append(f"{number}|{kind}|{sender}|{receiver}")
    return [line.encode() for line in lines]


def shuffled(seed: int, lines: list[bytes], most: int = 10_000) -> Iterator[list[bytes]]:
    """In batches of 1 to ``most``, each shuffled."""
    dice = random.Random(seed)
    at = 0
    while at < len(lines):
        batch = lines[at : at + dice.randint(1, most)]
        at += len(batch)
        dice.shuffle(batch)
        yield batch


def oracle(lines: Iterable[bytes], clients: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """What each of these clients gets if it is there all the time. Lines in order."""
    got: dict[bytes, list[bytes]] = {client: [] for client in clients}
    followers: dict[bytes, set[bytes]] = {}
    for line in lines:
        _, kind, sender, receiver = (line + b"||").split(b"|")[:4]
        told: Iterable[bytes] = ()
        if kind == b"B":
            told = got
        elif kind == b"P":
            told = [receiver]
        elif kind == b"S":
            told = followers.get(sender, ())
        elif kind == b"F" and sender not in followers.setdefault(receiver, set()):
            followers[receiver].add(sender)
            told = [receiver]
        elif kind == b"U":
            followers.get(receiver, set()).discard(sender)
        for client in told:
            if client in got:
                got[client].append(line)
    return got


def is_window(part: bytes, whole: bytes) -> bool:
    """Is this what a client gets that came and went while the whole was sent: a run of lines, none left out,
    perhaps with the beginning of one more?"""
    if not part:
        return True
    first = part.partition(b"\n")[0] + b"\n"
    begin = 0 if whole.startswith(first) else whole.find(b"\n" + first) + 1
    found = begin > 0 or whole.startswith(first)
    if b"\n" not in part:
        return True  # not one whole line
    return found and whole[begin : begin + len(part)] == part
