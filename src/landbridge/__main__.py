"""``python -m landbridge``: the command line."""

from __future__ import annotations

from landbridge.cli.main import run

if __name__ == "__main__":
    run()
