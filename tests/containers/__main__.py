"""`make test-containers`: make Docker and the images ready, then run the tests of this package with pytest.

Docker is installed by apt and started where it is missing and the user is root; images that can't be pulled are replaced by
stand-ins. Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.containers.engine import ROOT, WORK, ContainersError, compose_environment, running_engine
from tests.containers.images import images_in_place, obtain


def main(arguments: list[str]) -> int:
    """Run everything; return pytest's exit code, or 1 where the tests can't run."""
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        with running_engine(_report):
            environment = {**os.environ, **compose_environment(_report)}
            _report("Images:")
            with images_in_place(_report):
                environment |= _ryuk()
                command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), *arguments]
                return _exit_code(command, environment)
    except ContainersError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _exit_code(command: list[str], environment: dict[str, str]) -> int:
    """Run the tests. Ctrl-C reaches pytest too, which then removes its containers and ends: wait for that."""
    with subprocess.Popen(command, cwd=ROOT, env=environment) as tests:
        while True:
            try:
                return tests.wait()
            except KeyboardInterrupt:
                continue


def _ryuk() -> dict[str, str]:
    """Variables for testcontainers' Ryuk, which removes the containers of tests that were killed. It has no stand-in."""
    from testcontainers.core.config import testcontainers_config

    image = testcontainers_config.ryuk_image
    if not obtain(image):
        _report(f"  {image}: the published image")
        return {}
    _report(f"  {image}: not available and not needed; the tests remove their containers at their end")
    return {"TESTCONTAINERS_RYUK_DISABLED": "true"}


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
