"""dredd, which compares an API Blueprint with a live server."""

from __future__ import annotations

from tests import npm
from tests.npm import environment as environment

VERSION = "14.1.0"


def command() -> list[str]:
    """How dredd is called. Installs it at the first call."""
    folder = npm.package("dredd", VERSION)
    return [npm.NODE, "--no-warnings", str(folder / "node_modules" / "dredd" / "bin" / "dredd")]
