"""`make test-browser`: install Chromium by apt where it is missing and the user is root, then run the tests of this package.

Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.browser.browsing import find_chromium


def main(arguments: list[str]) -> int:
    """Return pytest's exit code, or 1 where the tests can't run."""
    if find_chromium() is None and os.geteuid() == 0:
        print("installing Chromium (apt-get install chromium)", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qqy", "chromium"]):
            if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
                break
    if find_chromium() is None:
        print("error: Chromium is not installed; install the package chromium", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "-n", "0", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
