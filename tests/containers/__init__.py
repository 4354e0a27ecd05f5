"""Tests of the container images, the compose file and the project's own image, on a real Docker: `make test-containers`.

`make test` doesn't collect this package (`norecursedirs` in pyproject.toml), so it runs the same tests with and without Docker.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
