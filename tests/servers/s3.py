"""A real S3 server for tests: the first of these that is available, and an error where none is.

1. The server that `LAKEWARDEN_TEST_S3_ENDPOINT` names, with its credentials in the usual AWS variables.
2. versitygw, from the PATH or the cache, or built into the cache with `go install` at a pinned version (about 80 s, once).
   It keeps ETags in extended attributes.
3. MinIO, likewise (about 2 minutes, once), where the file system has no extended attributes.

Where there is no Go, PyPI's is used.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.program import NoServerError, built_by_go, new_name, started

ENDPOINT_VARIABLE: Final = "LAKEWARDEN_TEST_S3_ENDPOINT"
REGION: Final = "us-east-1"
VIRTUAL_DOMAIN: Final = "s3.lakewarden.test"
"""A server started here serves `bucket` also as `bucket.s3.lakewarden.test`, to clients that resolve that name."""

ACCESS_KEY: Final = "lakewarden"
SECRET_KEY: Final = "lakewarden-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server: its address and its credentials."""

    endpoint: str
    access_key: str
    secret_key: str
    used: str
    region: str = REGION
    objects: Path | None = None
    """The folder in which the server keeps each object as a file, `<bucket>/<key>`. None where it doesn't."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that AWS's standard credential chain reads; for `monkeypatch.setenv` and child processes."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_client(self) -> Any:
        """A synchronous botocore client, with which tests arrange and check objects."""
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def bucket(self) -> str:
        """Create a bucket; return its name."""
        name = new_name()
        with closing(self.new_client()) as client:
            client.create_bucket(Bucket=name)
        return name

    def put(self, uri: str, body: bytes) -> None:
        """Write the object `s3://bucket/key`."""
        with closing(self.new_client()) as client:
            client.put_object(**_named_by(uri), Body=body)

    def get(self, uri: str) -> bytes:
        with closing(self.new_client()) as client:
            return bytes(client.get_object(**_named_by(uri))["Body"].read())


def _named_by(uri: str) -> dict[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


@dataclass(frozen=True, slots=True)
class _Program:
    """A server that Go builds, and the arguments that start it."""

    name: str
    module: str
    version: str
    needs_xattr: bool

    def arguments(self, port: int, data: Path) -> list[str]:
        address = f"127.0.0.1:{port}"
        if self.name == "versitygw":
            return ["--port", address, "--region", REGION, "--keep-alive", "--quiet", "posix", str(data)]
        return ["server", "--quiet", "--address", address, str(data)]


VERSITYGW: Final = _Program(
    "versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0", needs_xattr=True
)
_MINIO: Final = _Program(
    "minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c", needs_xattr=False
)
_PROGRAMS: Final = (VERSITYGW, _MINIO)

_ENVIRONMENT: Final = {
    "ROOT_ACCESS_KEY": ACCESS_KEY,
    "ROOT_SECRET_KEY": SECRET_KEY,
    "MINIO_ROOT_USER": ACCESS_KEY,
    "MINIO_ROOT_PASSWORD": SECRET_KEY,
    "MINIO_KMS_SECRET_KEY": f"locks:{base64.b64encode(bytes(32)).decode()}",
    "VGW_VIRTUAL_DOMAIN": VIRTUAL_DOMAIN,
    "MINIO_DOMAIN": VIRTUAL_DOMAIN,
}


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """A server that runs while the block does. A process started here ends with this one, even if this one is killed."""
    if endpoint := os.environ.get(ENDPOINT_VARIABLE):
        yield _named(endpoint)
        return
    with started_server() as server:
        yield server


@contextmanager
def started_server(programs: Sequence[_Program] = _PROGRAMS) -> Iterator[S3Server]:
    """A server that is started here, whatever `LAKEWARDEN_TEST_S3_ENDPOINT` names. It serves `VIRTUAL_DOMAIN`."""
    tried: list[str] = []
    with contextlib.ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakewarden-s3-")))
        for program, binary in _built(programs, data, tried):
            if (server := _start(program, binary, data, stack, tried)) is not None:
                yield server
                return
    raise NoServerError(
        f"no S3 server for the tests ({'; '.join(tried)}): install Go, or name a server in {ENDPOINT_VARIABLE}"
    )


def encrypting_s3_server() -> contextlib.AbstractContextManager[S3Server]:
    """MinIO, which encrypts what asks for SSE-KMS, and whose STS returns credentials with a policy."""
    return started_server((_MINIO,))


def is_server_named() -> bool:
    """Whether the tests use a server that they don't start."""
    return bool(os.environ.get(ENDPOINT_VARIABLE))


def prepare_s3_server() -> None:
    """Build the server where it isn't built yet. It takes minutes; call it while no test's timeout runs."""
    with tempfile.TemporaryDirectory(prefix="lakewarden-s3-") as folder:
        next(_built(_PROGRAMS, Path(folder), []), None)


def _built(programs: Sequence[_Program], data: Path, tried: list[str]) -> Iterator[tuple[_Program, Path]]:
    """Those that can be had and can keep their objects in this folder, one after the other."""
    for program in programs:
        if program.needs_xattr and not _has_xattr(data):
            tried.append(f"{program.name}: no extended attributes in {data}")
        elif (binary := built_by_go(program.name, program.module, program.version, tried)) is not None:
            yield program, binary


def _named(endpoint: str) -> S3Server:
    return S3Server(
        endpoint,
        os.environ.get("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        f"the server named in {ENDPOINT_VARIABLE}: {endpoint}",
        os.environ.get("AWS_DEFAULT_REGION", REGION),
    )


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
    folder = data / program.name
    folder.mkdir()

    def server(port: int) -> S3Server:
        used = f"{program.name} {program.version}: {binary}"
        objects = folder if program is VERSITYGW else None
        return S3Server(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, used, objects=objects)

    def answers(port: int) -> bool:
        client = server(port).new_client()
        try:
            client.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def command(port: int) -> list[str]:
        return [str(binary), *program.arguments(port, folder)]

    port = started(program.name, command, answers, stack, tried, **_ENVIRONMENT)
    return None if port is None else server(port)
