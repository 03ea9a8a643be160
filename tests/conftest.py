"""What the tests of every folder share.

How hard Hypothesis tries: `./dev test` takes the profile "quick", `./dev test --all` takes "full". In
continuous integration "quick" takes the same examples each time, so that a change is judged by what it
changes; everywhere else each run seeks new ones. After a change of core, a long search:

    HYPOTHESIS_PROFILE=thorough .venv/bin/python -m pytest tests/core --timeout 0
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: a busy machine is not a bug.
settings.register_profile(
    "full", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile(
    "quick", settings.get_profile("full"), max_examples=50, derandomize=os.environ.get("CI") == "true"
)
settings.register_profile("thorough", settings.get_profile("full"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True, scope="session")
def no_kept_loggers() -> Iterator[None]:
    """A command that runs in this process may set up logging. Loggers must not keep that: a later test that
    reads what is logged would read nothing."""
    configure = structlog.configure

    def without_cache(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", without_cache)
        yield


#: Seconds for a test of a folder whose tests start many processes, Spark's among them. On a busy machine such
#: a test takes minutes.
PATIENT = dict.fromkeys(("system", "pipeline"), 600)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        limit = PATIENT.get(item.path.parent.name)
        if limit and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit))


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
