"""The servers of object stores: one of each kind per test session, started if a test needs it, and their credentials."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers.azure import AzureServer, prepare_azure_server, running_azure_server
from tests.servers.gcs import GcsServer, prepare_gcs_server, running_gcs_server
from tests.servers.program import NoServerError
from tests.servers.s3 import S3Server, is_server_named, prepare_s3_server, running_s3_server, started_server

T = TypeVar("T")
PREPARATIONS: dict[str, Callable[[], None]] = {
    "started_s3_server": prepare_s3_server,
    "gcs_server": prepare_gcs_server,
    "azure_server": prepare_azure_server,
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the servers before the first test: that takes minutes, once, and no test's timeout runs yet."""
    if session.config.option.collectonly:
        return
    # Tests in tests/containers have an `s3_server` of their own, from an image.
    needed = {
        name
        for item in session.items
        if not item.get_closest_marker("containers")
        for name in getattr(item, "fixturenames", ())
    }
    if "s3_server" in needed and not is_server_named():
        needed.add("started_s3_server")
    for name in PREPARATIONS.keys() & needed:
        PREPARATIONS[name]()


def _running(servers: AbstractContextManager[T]) -> Iterator[T]:
    """Fails, and never skips, without a server: a passing suite would otherwise not have tested that store."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(servers)
        except NoServerError as error:
            pytest.fail(str(error), pytrace=False)
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    yield from _running(running_azure_server())


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    yield from _running(running_gcs_server())


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    yield from _running(running_s3_server())


@pytest.fixture
def started_s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """A server that the tests have started, also where `LAKEWARDEN_TEST_S3_ENDPOINT` names another one for the other tests."""
    if is_server_named():
        yield from _running(started_server())
    else:
        yield request.getfixturevalue("s3_server")


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the credentials of both clouds that the machine may have."""
    for name in os.environ:
        if name.startswith(("GOOGLE_", "AZURE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def _set(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a server's credentials where the standard chain reads them."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def azure_credentials(
    azure_server: AzureServer, no_cloud: None, monkeypatch: pytest.MonkeyPatch
) -> AzureServer:
    _set(azure_server.environment, monkeypatch)
    return azure_server


@pytest.fixture
def gcs_credentials(gcs_server: GcsServer, no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    _set(gcs_server.environment, monkeypatch)
    return gcs_server


@pytest.fixture
def s3_credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its credentials in the environment and none of the user's own there."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    _set(s3_server.environment, monkeypatch)
    return s3_server
