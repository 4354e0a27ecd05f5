from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator

import pytest

from tests.containers import ROOT

pytestmark = [pytest.mark.containers]

BUILD_SECONDS = 900
IMAGE = "lakewarden-test:built"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    built = subprocess.run(
        ["docker", "build", "--tag", IMAGE, "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    yield IMAGE
    subprocess.run(["docker", "image", "rm", IMAGE], capture_output=True, check=True)


def test_it_prints_the_version_of_the_project(image: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert printed(image, "--version").split() == ["lakewarden", version]


def test_it_prints_help_with_every_command(image: str) -> None:
    text = printed(image, "--help")

    assert all(command in text for command in ("agent", "lock", "status", "explain", "conflicts"))


def test_it_runs_as_a_user_of_its_own(image: str) -> None:
    assert printed(image, "-un", entrypoint="id") == "lakewarden\n"


def test_its_user_is_a_number_other_than_root(image: str) -> None:
    """Kubernetes can't verify a name (`runAsNonRoot`)."""
    done = subprocess.run(
        ["docker", "image", "inspect", "--format={{.Config.User}}", image],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) > 0


def test_it_has_the_agents_packages_and_neither_spark_nor_the_tests(image: str) -> None:
    names = ["lakewarden", "aiobotocore", "obstore", "typer", "pyspark", "pyarrow", "pytest"]
    script = f"from importlib.util import find_spec; print(*filter(find_spec, {names}))"

    assert printed(image, "-c", script, entrypoint="python").split() == names[:4]


def test_its_health_check_asks_the_agent(image: str) -> None:
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network=none", "--entrypoint=python", image),
            *("-m", "lakewarden.agent.health_check"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("http://127.0.0.1:8437/readyz doesn't answer")


def printed(image: str, *arguments: str, entrypoint: str = "lakewarden") -> str:
    """What a program of the image prints."""
    done = subprocess.run(
        ["docker", "run", "--rm", "--network=none", f"--entrypoint={entrypoint}", image, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
