"""The command ``landbridge``, also as ``python -m landbridge``. Where the client alone is installed, it says
how to get the command line."""

from __future__ import annotations

import sys


def run() -> None:
    """The entry point."""
    try:
        from landbridge.cli.main import main
    except KeyboardInterrupt:  # nothing has begun yet
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if (missing.name or "landbridge").partition(".")[0] == "landbridge":
            raise
        sys.stderr.write(
            f"error: the client alone is installed, without the command line (there is no {missing.name})\n"
            "  hint: pip install 'landbridge[terminal]'\n"
        )
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
