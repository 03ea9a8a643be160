"""What the tests of every folder share."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: a busy machine is not a bug.
settings.register_profile("quick", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
async def crashes() -> AsyncIterator[list[Any]]:
    """What nobody caught: exceptions that reached the event loop, and crashes that a terminal logged. The
    test fails if there is any at its end; one that expects some takes them out of the list."""
    found: list[Any] = []
    gc.freeze()  # what is there by now isn't looked through after each test
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    with structlog.testing.capture_logs() as logs:
        yield found
    gc.collect()  # a task that failed unseen says so when it goes
    await asyncio.sleep(0)
    found += [line for line in logs if line["log_level"] == "error"]
    assert found == []
