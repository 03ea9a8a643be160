"""Takes the pictures of docs/console.md: ``.venv/bin/python docs/screenshots.py``. A terminal has some
traffic, and a browser looks at its console. Needs chromium."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, Page, async_playwright

import landbridge
from landbridge.testing.wan import Line

IMAGES = Path(__file__).parent / "images"
#: Bytes of a picture.
MOST = 200_000
CAUSES = ("card declined", "timed out", "no such product")
#: The other terminals of the map: name → mode, region, and the seconds of each way to it.
TERMINALS = {
    "paris": ("server", "europe", 0.004),
    "frankfurt": ("server", "europe", 0.009),
    "tokyo": ("server", "asia", 0.045),
    "factory": ("client", "europe", 0.0),
    "office": ("client", "asia", 0.0),
}


async def fill(context: dict[str, Any], seconds: float) -> None:
    """Publish and consume for a while, so that there is something to see."""
    async with landbridge.connect(context["url"], token=context["token"]) as bus:
        for topic in ("shop.orders", "shop.invoices", "shop.stock", "web.clicks", "plant.telemetry"):
            await bus.topics.create(topic)
        await bus.topics.create("mail.jobs", kind="work")
        for group in ("billing", "lake", "shipping"):
            await bus.groups.create("shop.orders", group)
        await bus.groups.create("web.clicks", "lake")
        await bus.groups.pause("shop.orders", "shipping", note="the warehouse counts its stock")
        consumer = asyncio.ensure_future(consume(bus))
        end = asyncio.get_running_loop().time() + seconds
        number = 0
        while asyncio.get_running_loop().time() < end:
            for _ in range(6 + number % 5):
                number += 1
                await bus.publish(
                    "shop.orders", order(number), key=f"eu-{number % 7}", headers={"region": "eu"}
                )
                await bus.publish("web.clicks", {"page": f"/product/{number % 40}"})
                await bus.publish("plant.telemetry", {"sensor": number % 9, "value": 20 + number % 5})
            await asyncio.sleep(0.1)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "state": "paid" if number % 3 else "open",
        "customer": {"name": "Ana Sousa", "city": "Lisboa"},
        "items": [{"sku": f"A-{number % 40:03}", "count": 1 + number % 3, "price": 12.5}],
    }


async def consume(bus: landbridge.Bus) -> None:
    async with bus.subscribe("shop.orders", group="billing") as orders:
        number = 0
        async for message in orders:
            number += 1
            if number % 40 == 0:
                await message.bury(CAUSES[number // 40 % len(CAUSES)])
            else:
                _ = message.ack(wait=False)


async def control(context: dict[str, Any]) -> None:
    """Make what the pages of control show."""
    async with landbridge.connect(context["url"], token=context["token"]) as bus:
        await bus.schedules.create("shop.reports", "nightly", "30 2 * * mon-fri", zone="Europe/Lisbon")
        await bus.schedules.create("shop.reports", "turnover", "@every 5s", overlap="allow")


async def start_others(stack: AsyncExitStack, folder: str, environment: dict[str, str]) -> None:
    """Start the other terminals of the map, each behind a line with a delay."""
    for name, (mode, region, delay) in TERMINALS.items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = ["--mode", "client", "--listen", f"127.0.0.1:{port}"]
        if mode == "server":
            line = Line("127.0.0.1", port, delay=delay)
            await line.open()
            stack.push_async_callback(line.close)
            where = ["--address", line.url, "--listen", f"127.0.0.1:{port}"]
        file = f"{folder}/{name}.yml"
        create = ["terminal", "create", name, "--region", region, "--write", file, *where]
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "landbridge", *create, env=environment, stdout=asyncio.subprocess.DEVNULL
        )
        assert await made.wait() == 0
        run = ["terminal", "--config", file, "--http-port", "0"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "landbridge", *run, env=environment,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.terminate)


async def sign_in(browser: Browser, base: str, token: str) -> Page:
    async with httpx.AsyncClient(base_url=base) as http:
        made = await http.post("/console/links", headers={"authorization": f"Bearer {token}"})
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    await page.goto(base + made.json()["path"])
    await page.wait_for_url(f"{base}/")
    return page


async def take(page: Page, name: str) -> None:
    file = IMAGES / f"console-{name}.png"
    await page.screenshot(path=file)
    assert file.stat().st_size < MOST, f"{file.name} has {file.stat().st_size} bytes"
    print(file.name, file.stat().st_size)


async def pictures(browser: Browser, base: str, token: str) -> None:
    page = await sign_in(browser, base, token)
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        await page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        await page.goto(f"{base}/")
        await page.wait_for_timeout(5000)
        await take(page, f"overview{suffix}")
        await page.goto(f"{base}/console/topics")
        await page.wait_for_timeout(5000)
        await take(page, f"topics{suffix}")
    await page.emulate_media(color_scheme="light")
    await page.goto(f"{base}/console/dead-letters")
    await take(page, "dead-letters")
    await page.goto(f"{base}/console/topics/shop.orders/messages?key=eu-1")
    await take(page, "messages")
    await page.goto(f"{base}/console/topics/shop.orders/messages/42")
    await take(page, "message")
    await page.goto(f"{base}/console/topics/shop.orders/groups/billing")
    await page.get_by_role("button", name="Preview the move").click()
    await page.locator("dialog[open]").wait_for()
    await take(page, "move")
    await page.goto(f"{base}/console/topics/shop.reports/schedules/turnover")
    await take(page, "schedule")
    await page.goto(f"{base}/console/map?to=office")
    await page.wait_for_timeout(5000)
    await take(page, "map")
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto(f"{base}/console/topics/shop.orders")
    await page.wait_for_timeout(5000)
    await take(page, "phone")


async def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            http_port = str(free.getsockname()[1])
        environment = {**os.environ, "LANDBRIDGE_HOME": f"{folder}/home"}
        command = [sys.executable, "-m", "landbridge", "up", "--json", "--data", f"{folder}/data"]
        process = subprocess.Popen(
            [*command, "--name", "lisboa", "--port", "0", "--http-port", http_port],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            context = json.loads(Path(f"{folder}/home/contexts/local.json").read_bytes())
            filling = asyncio.ensure_future(fill(context, 150.0))
            await control(context)
            async with AsyncExitStack() as stack, async_playwright() as playwright:
                await start_others(stack, folder, environment)
                await asyncio.sleep(60.0)
                options: dict[str, Any] = {"args": ["--no-sandbox"]} if os.geteuid() == 0 else {}
                browser = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), **options
                )
                await pictures(browser, ready["http"], context["token"])
                await browser.close()
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    asyncio.run(main())
