from __future__ import annotations
import asyncio, json, sys, time
from typing import Any
import landbridge
from tests.cli.conftest import Place
from tests.ports import free_port
quotes = landbridge.Service("quotes")
@quotes.on("prices.quote", reply=True)
async def quote(order: dict[str, Any]) -> dict[str, Any]:
    return {"price": 2 * order["count"]}
async def test_x(tmp_path):
    place = Place(tmp_path)
    with place.up("--http-port", str(free_port())) as up:
        c = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
        async with landbridge.connect(c["url"], token=c["token"]) as bus, quotes.running(bus):
            t=time.time(); n=0
            while time.time()-t<5:
                try:
                    await bus.request("prices.quote", {"count": 1}); print("OK", n); break
                except landbridge.errors.NoResponder: n+=1
                await asyncio.sleep(0.01)
            else:
                print("NEVER", n)
                for t in asyncio.all_tasks(): t.print_stack(limit=6,file=sys.stdout)
                print(await bus.topics.list(), await bus.call('service.list'))
                assert 0
