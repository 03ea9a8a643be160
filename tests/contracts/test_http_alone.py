"""A gateway in a process of its own: it trades credentials for tokens, too."""

from __future__ import annotations

import pytest

from landbridge.errors import BadRequest, LimitReached, Unauthenticated
from landbridge.node import gateway
from landbridge.node.assembly import dial_to
from landbridge.testing import attach, run_terminal


async def test_a_credential_is_traded_by_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MOST_TRADES", 6)
    async with run_terminal() as terminal, attach(terminal) as bus:
        made = await bus.services.register("shop", scopes=["publish:orders"])
        desk = gateway.TokenDesk(dial_to(terminal))
        right = {"service": "shop", "credential": made.credential}
        answer = await desk.answer("127.0.0.1", "service.token", right)
        assert (answer["service"], answer["scopes"]) == ("shop", ["publish:orders"])
        async with attach(terminal, token=answer["token"]) as shop:
            await shop.publish("orders", 1)
        texts = set()
        for wrong in (
            right | {"service": "other"},
            right | {"credential": "lbsc1_x"},
            right | {"credential": "x"},
        ):
            with pytest.raises(Unauthenticated) as refused:
                await desk.answer("127.0.0.1", "service.token", wrong)
            texts.add(str(refused.value))
        assert len(texts) == 1  # whatever is wrong, the answer is the same
        with pytest.raises(BadRequest):
            await desk.answer("127.0.0.1", "service.token", {"service": "shop"})
        with pytest.raises(Unauthenticated):
            await desk.answer("127.0.0.1", "service.list", {})
        with pytest.raises(LimitReached):
            for _ in range(2):
                await desk.answer("127.0.0.1", "service.token", right)
