"""Asks several nodes for one operation, and makes one answer of theirs (``protocol/merging.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from landbridge.errors import BusError
from landbridge.protocol import frames, merging
from landbridge.protocol.router import Gather

#: Asks a node: its name, the operation, its arguments, and whom a gateway asks for.
Ask: TypeAlias = Callable[[str, str, dict[str, Any], str], Awaitable[Any]]
#: Seconds that one node waits for news before it is asked again, where several do.
SLICE = 0.5
#: HTTP status of the errors that say that a node doesn't have it: another one may.
NOT_THERE = 404


class Inquiry:
    """One operation of one client."""

    def __init__(self, ask: Ask, decision: Gather, frame: frames.Call, home: str) -> None:
        self._ask, self._frame, self._home = ask, frame, home
        self._op, self._asked = decision.operation, decision.asked

    async def run(self) -> Any:
        if self._op.name in merging.WATCHED:
            return await self._watch()
        if self._op.where == "any":
            return await self._any()
        if self._op.name == "topic.wait":
            return await self._wait()
        return merging.merge(self._op.name, self._frame.args, await self._all(self._asked), self._home)

    async def _all(self, asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The answers of all nodes. What some don't have is no error where others have it."""
        found = await asyncio.gather(*(self._one(node, args) for node, args in asked.items()))
        answers = dict(zip(asked, found, strict=True))
        errors = [each for each in answers.values() if isinstance(each, BusError)]
        if errors and (len(errors) == len(answers) or any(e.http_status != NOT_THERE for e in errors)):
            raise max(errors, key=lambda error: error.http_status != NOT_THERE)
        return {node: each for node, each in answers.items() if not isinstance(each, BusError)}

    async def _one(self, node: str, args: dict[str, Any]) -> Any:
        try:
            return await self._ask(node, self._op.name, args, self._frame.origin)
        except BusError as error:
            return error

    async def _any(self) -> Any:
        """The answer of the first node that has what is asked for."""
        error: BusError | None = None
        for node, args in self._asked.items():
            answer = await self._one(node, args)
            if not isinstance(answer, BusError):
                return answer
            if answer.http_status != NOT_THERE:
                raise answer
            error = answer
        assert error is not None
        raise error

    async def _first(
        self, asked: dict[str, dict[str, Any]], is_news: Callable[[Any], bool]
    ) -> dict[str, Any]:
        """The answers of those nodes that have news when the first one has; none after the slice is over."""
        asking = {asyncio.ensure_future(self._one(node, args)): node for node, args in asked.items()}
        try:
            waiting = set(asking)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                found = {asking[task]: task.result() for task in done}
                for answer in found.values():
                    if isinstance(answer, BusError):
                        raise answer
                news = {node: answer for node, answer in found.items() if is_news(answer)}
                if news:
                    return news
            return {}
        finally:
            for task in asking:
                task.cancel()

    async def _watch(self) -> Any:
        """News of any node, as soon as there are some."""
        name, args = self._op.name, self._frame.args
        field = merging.WATCHED[name][0]
        marks = merging.marks_of(str(args.get(field) or ""), list(self._asked))
        until = _until(args)
        while True:
            if "" not in marks.values():
                within = max(0.0, min(SLICE, until - _now()))
                asked = {node: {**args, field: mark, "within": within} for node, mark in marks.items()}
                news = await self._first(asked, lambda answer: merging.is_news(name, answer))
                if not any(merging.is_new_list(name, each) for each in news.values()):
                    if news or _now() >= until:
                        return merging.merge_news(name, news, marks)
                    continue
            # One of them has begun anew, or the caller has: all tell all.
            begun = await self._all({node: {**args, field: "", "within": 0.0} for node in marks})
            return merging.merge_news(name, begun, marks)

    async def _wait(self) -> Any:
        """The bounds of all topics when one of them has grown."""
        until = _until(self._frame.args)

        def has_grown(answer: Any) -> bool:
            return any(answer[topic]["end"] > offset for topic, offset in offsets.items() if topic in answer)

        offsets: dict[str, int] = self._frame.args["offsets"]
        while True:
            within = max(0.0, min(SLICE, until - _now()))
            grown = await self._first(
                {node: {**args, "within": within} for node, args in self._asked.items()}, has_grown
            )
            if grown or _now() >= until:
                now = await self._all({node: {**args, "within": 0.0} for node, args in self._asked.items()})
                return merging.merge(self._op.name, self._frame.args, now, self._home)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _until(args: dict[str, Any]) -> float:
    """By the loop's clock: until when the caller waits. What is no number is refused by the nodes."""
    within = args.get("within", 0.0)
    return _now() + (min(float(within), 60.0) if isinstance(within, int | float) else 0.0)
