"""A Docker engine and Compose for the tests: those of this machine, else installed, started or built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.servers.program import built, cache, go, one_at_a_time

Report = Callable[[str], None]

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "containers"
"""Logs and temporary files of a run."""
COMPOSE_VERSION: Final = "v2.40.3"
"""Built where Docker has no Compose. Debian 12 packages only Compose 1, which can't read our compose file."""
_COMPOSE_MODULE: Final = "github.com/docker/compose/v2"
_ANSWER_SECONDS: Final = 20
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 60
_INSTALL_SECONDS: Final = 600


class ContainersError(Exception):
    """The container tests can't run here; the message names the reason and the remedy."""


def run(
    command: Sequence[str], *, timeout: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a command that can't be started or takes too long returns exit code 127 or 124."""
    try:
        return subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done within {timeout:.0f} s")


def last_line(text: str) -> str:
    """The last line that has text, for a message of one line."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


@contextmanager
def running_engine(report: Report) -> Iterator[None]:
    """A Docker engine that answers while the block runs. One that was started here is stopped at the end."""
    version, problem = engine_version()
    if version is not None:
        report(f"Docker {version} is running.")
        yield
        return
    if host := os.environ.get("DOCKER_HOST"):
        raise ContainersError(
            f"Docker does not answer at DOCKER_HOST={host} ({problem}): start it, or unset DOCKER_HOST"
        )
    if os.geteuid() != 0:
        raise ContainersError(
            f"Docker does not answer ({problem}): start it, or run make test-containers as root"
        )
    if shutil.which("dockerd") is None:
        install("docker.io", report)
    version, _ = engine_version()  # on a machine with systemd the package starts it
    if version is not None:
        report(f"Docker {version} is running.")
        yield
    else:
        with _started_daemon(report):
            yield


def install(package: str, report: Report) -> None:
    """Install a Debian or Ubuntu package; needs root and apt."""
    if os.geteuid() != 0:
        raise ContainersError(f"{package} is not installed: install it, or run make test-containers as root")
    if shutil.which("apt-get") is None:
        raise ContainersError(
            f"{package} is not installed and there is no apt: install it, then run make test-containers again"
        )
    report(f"Installing {package} by apt …")
    noninteractive = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], timeout=_INSTALL_SECONDS)  # where it fails, older lists may do
    done = run(
        ["apt-get", "install", "--yes", "--no-install-recommends", package],
        timeout=_INSTALL_SECONDS,
        environment=noninteractive,
    )
    if done.returncode != 0:
        raise ContainersError(
            f"apt-get install {package} failed ({last_line(done.stderr)}): install it by hand, then try again"
        )


def compose_environment(report: Report) -> dict[str, str]:
    """Variables with which `docker compose` is Compose 2: none where it already is, else those that name the one built here."""
    found = run(["docker", "compose", "version", "--short"], timeout=_ANSWER_SECONDS)
    if found.returncode == 0:
        report(f"Compose {found.stdout.strip()} is Docker's own.")
        return {}
    environment = {"DOCKER_CONFIG": str(_configuration(_compose(report)))}
    found = run(["docker", "compose", "version", "--short"], timeout=_ANSWER_SECONDS, environment=environment)
    if found.returncode != 0:
        raise ContainersError(
            f"docker compose does not run ({last_line(found.stderr)}): install Docker's Compose plugin"
        )
    report(f"Compose {found.stdout.strip()} was built from its Go module, as Docker has no Compose here.")
    return environment


def engine_version() -> tuple[str | None, str]:
    """The version of the engine that answers, or None and why none does."""
    found = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout=_ANSWER_SECONDS)
    if found.returncode == 0 and found.stdout.strip():
        return found.stdout.strip(), ""
    return None, last_line(found.stderr)


@contextmanager
def _started_daemon(report: Report) -> Iterator[None]:
    log = WORK / "dockerd.log"
    with log.open("wb") as output:
        # A session of its own: Ctrl-C ends the tests, which then still need Docker for their clean-up.
        daemon = subprocess.Popen(
            ["dockerd"], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (version := engine_version()[0]) is None:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise ContainersError(
                    f"dockerd did not start ({last_line(log.read_text(errors='replace'))}; log: {log}): "
                    "start Docker by hand, then run make test-containers again"
                )
            time.sleep(0.2)
        report(f"Docker {version} was started, and is stopped at the end; log: {log.relative_to(ROOT)}")
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _compose(report: Report) -> Path:
    """Compose, built once into the cache.

    `go install` refuses this module because its go.mod excludes versions; it builds as a main module, in Go's own copy.
    """
    binary = cache() / "bin" / f"docker-compose-{COMPOSE_VERSION}"
    with one_at_a_time(binary):
        if binary.exists():
            return binary
        report(
            f"Building Compose {COMPOSE_VERSION} from its Go module, the first time only; about 3 minutes …"
        )
        tried: list[str] = []
        with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
            program = go(tried)
            module = f"{_COMPOSE_MODULE}@{COMPOSE_VERSION}"
            new = Path(folder) / "docker-compose"
            version = f"-X {_COMPOSE_MODULE}/internal.Version={COMPOSE_VERSION}"
            if (
                program is None
                or not built([program, "mod", "download", module], {}, folder, tried)
                or not built(
                    [program, "build", "-trimpath", "-ldflags", f"-s -w {version}", "-o", str(new), "./cmd"],
                    {"GOFLAGS": "-mod=readonly"},
                    _module_folder(program, module),
                    tried,
                )
            ):
                raise ContainersError(
                    f"Compose could not be built ({'; '.join(tried)}): install Docker's Compose plugin "
                    "(docker-compose-v2 or docker-compose-plugin), then run make test-containers again"
                )
            new.replace(binary)
    return binary


def _module_folder(program: str, module: str) -> str:
    """Where Go keeps a module that it has downloaded."""
    path, _, version = module.partition("@")
    root = run([program, "env", "GOMODCACHE"], timeout=_ANSWER_SECONDS).stdout.strip()
    return str(Path(root) / f"{path}@{version}")


def _configuration(compose: Path) -> Path:
    """A configuration folder for Docker's client: the user's, and Compose among its plugins."""
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    made = WORK / "docker-config"
    shutil.rmtree(made, ignore_errors=True)
    plugins = made / "cli-plugins"
    plugins.mkdir(parents=True)
    for folder, target in ((own, made), (own / "cli-plugins", plugins)):
        for each in folder.iterdir() if folder.is_dir() else ():
            if not (target / each.name).exists():
                (target / each.name).symlink_to(each)
    plugin = plugins / "docker-compose"
    plugin.unlink(missing_ok=True)
    plugin.symlink_to(compose)
    return made
