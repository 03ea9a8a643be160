#!/usr/bin/env python3
"""Say whether the terminal of this container is alive: status 0 if ``/healthz`` of its HTTP port answers.

    landbridge-healthy          # alive?
    landbridge-healthy ready    # does it take messages?

The certificate isn't looked at: it is for other names, and both ends are in this container. The port is 7480,
or that of LANDBRIDGE_HTTP_PORT.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

WITHIN = 4.0


def main() -> int:
    path = "readyz" if sys.argv[1:] == ["ready"] else "healthz"
    port = int(os.environ.get("LANDBRIDGE_HTTP_PORT", "7480"))
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    # Not through a proxy that the environment names.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
    )
    failure: Exception | None = None
    for scheme in ("https", "http"):
        try:
            with opener.open(f"{scheme}://127.0.0.1:{port}/{path}", timeout=WITHIN) as answer:
                sys.stdout.write(answer.read(10_000).decode(errors="replace"))
                return 0
        except urllib.error.HTTPError as error:
            sys.stdout.write(error.read(10_000).decode(errors="replace"))
            return 1
        except OSError as error:
            failure = error
    sys.stderr.write(f"no answer at port {port}: {failure}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
