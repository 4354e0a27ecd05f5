"""Stand-ins for published images, for machines that can reach package registries but no image registry.

Each is built from a `<name>.Dockerfile` in this folder on `lakewarden-stand-in/debian`, which debootstrap makes. What goes
in comes from Debian, PyPI, Maven Central and the Go module proxy, through their ordinary clients.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lakewarden.agent.embedded.jars import (
    KAFKA_VERSION,
    JarsUnavailable,
    dependency,
    downloaded,
    kafka_library,
    maven_context,
)
from tests.containers.engine import ROOT, WORK, ContainersError, Report, install, last_line, run
from tests.servers.program import built, cache, go, one_at_a_time
from tests.servers.s3 import VERSITYGW

LABEL: Final = "lakewarden.stand-in"
"""Every stand-in, and every image that is built on one, has it."""

_FOLDER: Final = Path(__file__).parent
_DEBIAN: Final = "bookworm"
_DEBIAN_IMAGE: Final = f"lakewarden-stand-in/debian:{_DEBIAN}"
_BUILD_SECONDS: Final = 900
_DOCKER_SECONDS: Final = 60


def stand_in_name(image: str) -> str:
    """The name under which a stand-in is kept."""
    return f"lakewarden-stand-in/{image}"


def build_stand_in(image: str, problem: str, report: Report) -> str:
    """Build the stand-in for `image`, which can't be pulled because of `problem`; return what it is made of."""
    repository, _, version = image.rpartition(":")
    recipe = _RECIPES.get(repository)
    if recipe is None:
        raise ContainersError(
            f"{image} can't be pulled ({problem}) and has no stand-in: add one to {_FOLDER.name}"
        )
    if os.geteuid() != 0:
        raise ContainersError(
            f"{image} can't be pulled ({problem}), and only root can build stand-ins: pull the images, "
            "or run make test-containers as root"
        )
    _make_debian(report)
    name = repository.rpartition("/")[2]
    with tempfile.TemporaryDirectory(dir=WORK, prefix=f"{name}-") as folder:
        made_of = recipe(version, Path(folder), report)
        dockerfile = _FOLDER / f"{name}.Dockerfile"
        # The host's network: its name server and its proxies are known to work.
        command = ["docker", "build", "--network=host", f"--label={LABEL}={image}", f"--file={dockerfile}"]
        done = run([*command, f"--tag={stand_in_name(image)}", folder], timeout=_BUILD_SECONDS)
    if done.returncode != 0:
        (WORK / f"{name}-build.log").write_text(done.stdout + done.stderr)
        raise ContainersError(
            f"the stand-in for {image} could not be built ({last_line(done.stderr or done.stdout)}); "
            f"log: {WORK / f'{name}-build.log'}"
        )
    return made_of(stand_in_name(image))


def _make_debian(report: Report) -> None:
    """The base of all stand-ins: Debian's smallest installation."""
    if run(["docker", "image", "inspect", _DEBIAN_IMAGE], timeout=_DOCKER_SECONDS).returncode == 0:
        return
    if shutil.which("debootstrap") is None:
        install("debootstrap", report)
    report(f"Making a base image of Debian {_DEBIAN} with debootstrap, the first time only …")
    with tempfile.TemporaryDirectory(dir=WORK, prefix="debian-") as folder:
        root = Path(folder) / "root"
        done = run(["debootstrap", "--variant=minbase", _DEBIAN, str(root)], timeout=_BUILD_SECONDS)
        if done.returncode != 0:
            raise ContainersError(
                f"debootstrap {_DEBIAN} failed ({last_line(done.stdout + done.stderr)}): is Debian's mirror reached?"
            )
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as archive:
            change = f'LABEL {LABEL}="{_DEBIAN_IMAGE}"'
            subprocess.run(
                ["docker", "import", "--change", change, "-", _DEBIAN_IMAGE],
                stdin=archive.stdout,
                stdout=subprocess.DEVNULL,
                timeout=_BUILD_SECONDS,
                check=True,
            )


MadeOf = Callable[[str], str]
"""What the image of this name is made of, with the versions that it prints itself."""


def _python(version: str, context: Path, report: Report) -> MadeOf:
    certificates = context / "certificates"
    certificates.mkdir()
    for each in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(each, certificates)
    expected = version.partition("-")[0]

    def made_of(name: str) -> str:
        found = _printed(name, "python3", "--version")
        if not found.startswith(f"Python {expected}."):
            raise ContainersError(
                f"Debian {_DEBIAN} has {found}, but the Dockerfile names Python {expected}: choose another Debian in "
                f"{_FOLDER.name}"
            )
        return f"{found} of Debian {_printed(name, 'cat', '/etc/debian_version')}, with this machine's certificate authorities"

    return made_of


def _uv(version: str, context: Path, report: Report) -> MadeOf:
    uv = ROOT / "build" / "tools" / "bin" / "uv"
    found = run([str(uv), "--version"], timeout=_DOCKER_SECONDS).stdout.split()
    if found[1:2] != [version]:
        raise ContainersError(
            f"the Dockerfile names uv {version}, but `make setup` installs {found}: make them equal"
        )
    shutil.copy(uv, context / "uv")
    return lambda _: f"uv {version} of PyPI"


def _busybox(version: str, context: Path, report: Report) -> MadeOf:
    return lambda name: f"{_printed(name, 'busybox').split(' multi-call')[0]} of Debian"


def _versitygw(version: str, context: Path, report: Report) -> MadeOf:
    """Built without cgo: the copy that other tests use needs the C library of this machine."""
    binary = cache() / "bin" / f"versitygw-{version}-static"
    with one_at_a_time(binary):
        if not binary.exists():
            report(f"Building versitygw {version} from its Go module, the first time only; about 1 minute …")
            tried: list[str] = []
            program = go(tried)
            with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
                environment = {"GOBIN": folder, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
                command = [str(program), "install", f"{VERSITYGW.module}@{version}"]
                if program is None or not built(command, environment, folder, tried):
                    raise ContainersError(f"versitygw {version} could not be built: {'; '.join(tried)}")
                (Path(folder) / "versitygw").replace(binary)
    shutil.copy(binary, context / "versitygw")
    return lambda name: (
        f"versitygw {version} of the Go module proxy on {_printed(name, '/bin/busybox').split(' (')[0]}"
    )


def _prometheus(version: str, context: Path, report: Report) -> MadeOf:
    """Debian's version, whichever `version` is: what the compose file uses is the same in both."""
    return lambda name: (
        f"{_printed(name, '/bin/prometheus', '--version').split(' (')[0]} of Debian, with the published image's paths and user"
    )


def _kafka(version: str, context: Path, report: Report) -> MadeOf:
    if version != KAFKA_VERSION:
        raise ContainersError(f"docker-compose.yml names Kafka {version}, but the jars are {KAFKA_VERSION}")
    try:
        shutil.copytree(downloaded(kafka_library()), context / "jars")
        shutil.copy(_kafka_tools(), context / "jars")
    except JarsUnavailable as error:
        raise ContainersError(str(error)) from error
    shutil.copytree(_FOLDER / "kafka", context, dirs_exist_ok=True)
    return lambda name: (
        f"Kafka {version}'s jars of Maven Central on Java {_printed(name, 'java', '--version').split()[1]} of Debian, "
        "started as the published image starts them"
    )


def _kafka_tools() -> Path:
    """The jar of Kafka's commands, which the embedded broker doesn't need; the compose file's health check does."""
    jar = cache() / f"kafka-tools-{KAFKA_VERSION}.jar"
    with one_at_a_time(jar):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
                coordinate = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"
                try:
                    found = dependency(maven_context(Path(folder)), coordinate).artifact.resolve()
                except Exception as error:
                    raise ContainersError(
                        f"{coordinate} could not be fetched from Maven Central: {error}"
                    ) from error
                shutil.move(shutil.copy(found, folder), jar)
    return jar


def _printed(image: str, program: str, *arguments: str) -> str:
    """The first line that a program of the image prints."""
    done = run(
        ["docker", "run", "--rm", "--network=none", f"--entrypoint={program}", image, *arguments],
        timeout=_DOCKER_SECONDS,
    )
    return (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]


_RECIPES: Final[dict[str, Callable[[str, Path, Report], MadeOf]]] = {
    "python": _python,
    "ghcr.io/astral-sh/uv": _uv,
    "busybox": _busybox,
    "versity/versitygw": _versitygw,
    "apache/kafka": _kafka,
    "prom/prometheus": _prometheus,
}
