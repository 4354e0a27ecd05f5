"""Asks the agent on this machine whether it is ready: the health check of containers and units.

    python -m lakewarden.agent.health_check

It prints the answer of `/readyz` at the agent's address (`http_listen`). Exit codes: 0 ready; 1 not ready, or no answer; 2 the
endpoint is off. It needs the standard library alone, so that a check costs a fraction of what a command of `lakewarden` costs.
"""

import os
import sys
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

DEFAULT = "127.0.0.1:8437"
"""As in `agent/settings.py`; a test compares the two."""
TIMEOUT_SECONDS = 5.0
_EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - replaced, not bound


def url_of(http_listen: str) -> str:
    """The URL of `/readyz` on this machine."""
    host, _, port = http_listen.rpartition(":")
    return f"http://{_EVERY_ADDRESS.get(host, host)}:{port}/readyz"


def main() -> int:
    """Ask, print the answer, return the exit code."""
    listen = os.environ.get("LAKEWARDEN_HTTP_LISTEN", DEFAULT)
    if listen == "off":
        sys.stdout.write("the agent has no HTTP endpoint: LAKEWARDEN_HTTP_LISTEN is off\n")
        return 2
    url = url_of(listen)
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_SECONDS) as answer:
            text, ready = answer.read().decode(), True
    except HTTPError as error:
        text, ready = error.read().decode(), False
    except (URLError, OSError) as error:
        text, ready = f"{url} doesn't answer: {getattr(error, 'reason', error)}", False
    sys.stdout.write(text.rstrip() + "\n")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
