"""A real S3 server for tests: the one that is named, the one in Docker, or one built here once.

In this order, and never silently none:

1. `LAKEWARDEN_TEST_S3_ENDPOINT`, with the usual AWS variables for its credentials,
2. a container, if Docker answers quickly and already has one of the images (nothing is pulled),
3. versitygw or MinIO: on the PATH, or in the cache, or built into it with `go install` at a pinned version
   (about 80 s and 2 min, once), by PyPI's Go where there is none. versitygw keeps ETags in extended attributes; where
   the file system has none, MinIO it is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.program import NoServerError, built_by_go, free_port, spawn, stop

ENDPOINT_VARIABLE: Final = "LAKEWARDEN_TEST_S3_ENDPOINT"
REGION: Final = "us-east-1"
VIRTUAL_DOMAIN: Final = "s3.lakewarden.test"
"""A server started here serves `bucket` also as `bucket.s3.lakewarden.test`, for a client that resolves it."""

_ACCESS_KEY: Final = "lakewarden"
_SECRET_KEY: Final = "lakewarden-secret"

_DOCKER_SECONDS: Final = 5
"""A client without a daemon answers at once; a daemon that needs longer would slow every run of the tests."""

_START_SECONDS: Final = 30
_START_ATTEMPTS: Final = 3
"""Another process may take the free port that was found before the server does."""


class NoS3ServerError(NoServerError):
    """No S3 server can be had here; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server, where it is and how to open it."""

    endpoint: str
    access_key: str
    secret_key: str
    used: str
    region: str = REGION
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @property
    def environment(self) -> dict[str, str]:
        """What the standard credential chain needs; for `monkeypatch.setenv` and child processes."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_client(self) -> Any:
        """A synchronous botocore client, for arranging and checking what is under test."""
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def bucket(self) -> str:
        """A fresh bucket's name."""
        name = f"lakewarden-{uuid.uuid4().hex[:12]}-{next(self._numbers)}"
        client = self.new_client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


@dataclass(frozen=True, slots=True)
class _Program:
    """A server that Go can build, and how it is started."""

    name: str
    module: str
    version: str
    image: str
    container_arguments: tuple[str, ...]
    container_port: int
    needs_xattr: bool

    def arguments(self, port: int, data: Path) -> list[str]:
        address = f"127.0.0.1:{port}"
        if self.name == "versitygw":
            return ["--port", address, "--region", REGION, "--keep-alive", "--quiet", "posix", str(data)]
        return ["server", "--quiet", "--address", address, str(data)]


_VERSITYGW: Final = _Program(
    "versitygw",
    "github.com/versity/versitygw/cmd/versitygw",
    "v1.8.0",
    "versity/versitygw:v1.8.0",
    ("posix", "/tmp"),
    7070,
    needs_xattr=True,
)
_MINIO: Final = _Program(
    "minio",
    "github.com/minio/minio",
    "v0.0.0-20260212201848-7aac2a2c5b7c",
    "minio/minio:RELEASE.2025-09-07T16-13-09Z",
    ("server", "/data"),
    9000,
    needs_xattr=False,
)
_PROGRAMS: Final = (_VERSITYGW, _MINIO)

_ENVIRONMENT: Final = {
    "ROOT_ACCESS_KEY": _ACCESS_KEY,
    "ROOT_SECRET_KEY": _SECRET_KEY,
    "MINIO_ROOT_USER": _ACCESS_KEY,
    "MINIO_ROOT_PASSWORD": _SECRET_KEY,
    "VGW_VIRTUAL_DOMAIN": VIRTUAL_DOMAIN,
    "MINIO_DOMAIN": VIRTUAL_DOMAIN,
}


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """A server for as long as the block runs; a process started here dies with this one, whatever kills it."""
    if endpoint := os.environ.get(ENDPOINT_VARIABLE):
        yield _named(endpoint)
        return
    tried: list[str] = []
    with contextlib.ExitStack() as stack:
        if (server := _in_docker(stack, tried)) is not None:
            yield server
            return
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakewarden-s3-")))
        for program in _PROGRAMS:
            if program.needs_xattr and not _has_xattr(data):
                tried.append(f"{program.name}: no extended attributes in {data}")
                continue
            binary = built_by_go(program.name, program.module, program.version, tried)
            if binary is not None and (server := _start(program, binary, data, stack, tried)) is not None:
                yield server
                return
    raise NoS3ServerError(
        f"no s3 server for the tests; set {ENDPOINT_VARIABLE}, or start docker: " + "; ".join(tried)
    )


def prepare_s3_server() -> None:
    """Build a server where one has to be built, for a moment when no test's timeout runs."""
    if os.environ.get(ENDPOINT_VARIABLE) or any(
        _docker("image", "inspect", "--format", "{{.Id}}", program.image) for program in _PROGRAMS
    ):
        return
    with tempfile.TemporaryDirectory(prefix="lakewarden-s3-") as folder:
        for program in _PROGRAMS:
            if program.needs_xattr and not _has_xattr(Path(folder)):
                continue
            if built_by_go(program.name, program.module, program.version, []) is not None:
                return


def _named(endpoint: str) -> S3Server:
    return S3Server(
        endpoint,
        os.environ.get("AWS_ACCESS_KEY_ID", _ACCESS_KEY),
        os.environ.get("AWS_SECRET_ACCESS_KEY", _SECRET_KEY),
        f"the server named in {ENDPOINT_VARIABLE}: {endpoint}",
        os.environ.get("AWS_DEFAULT_REGION", REGION),
    )


def _in_docker(stack: contextlib.ExitStack, tried: list[str]) -> S3Server | None:
    if not _docker("version", "--format", "{{.Server.Version}}"):
        tried.append("docker: no daemon answers")
        return None
    for program in _PROGRAMS:
        if not _docker("image", "inspect", "--format", "{{.Id}}", program.image):
            tried.append(f"docker: no image {program.image}")
            continue
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        testcontainers_config.ryuk_disabled = (
            True  # its image would have to be pulled; we stop ours ourselves
        )
        container = DockerContainer(program.image).with_exposed_ports(program.container_port)
        for name, value in _ENVIRONMENT.items():
            container = container.with_env(name, value)
        running = stack.enter_context(container.with_command(list(program.container_arguments)))
        address = f"{running.get_container_host_ip()}:{running.get_exposed_port(program.container_port)}"
        server = S3Server(f"http://{address}", _ACCESS_KEY, _SECRET_KEY, f"{program.image} in docker")
        if _answers(server, lambda: True):
            return server
        tried.append(f"docker: {program.image} did not answer within {_START_SECONDS} s")
    return None


def _docker(*arguments: str) -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        done = subprocess.run([docker, *arguments], capture_output=True, timeout=_DOCKER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _has_xattr(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.lakewarden", b"1")
        os.removexattr(folder, "user.lakewarden")
    except (OSError, AttributeError):
        return False
    return True


def _start(
    program: _Program, binary: Path, data: Path, stack: contextlib.ExitStack, tried: list[str]
) -> S3Server | None:
    log = data.with_suffix(".log")
    stack.callback(log.unlink, missing_ok=True)
    folder = data / program.name
    folder.mkdir()
    for _ in range(_START_ATTEMPTS):
        port = free_port()
        process = spawn([str(binary), *program.arguments(port, folder)], _ENVIRONMENT, log)
        server = S3Server(
            f"http://127.0.0.1:{port}",
            _ACCESS_KEY,
            _SECRET_KEY,
            f"{program.name} {program.version}: {binary}",
        )
        if _answers(server, lambda process=process: process.poll() is None):
            stack.callback(stop, process)
            return server
        stop(process)
    tried.append(f"{program.name}: did not start: {log.read_text(errors='replace')[-300:].strip()}")
    return None


def _answers(server: S3Server, alive: Any) -> bool:
    """Whether it lists its buckets before the time is up; asked anew until then."""
    client = server.new_client()
    deadline = time.monotonic() + _START_SECONDS
    try:
        while alive() and time.monotonic() < deadline:
            try:
                client.list_buckets()
            except (BotoCoreError, ClientError):
                time.sleep(0.05)
            else:
                return True
    finally:
        client.close()
    return False
