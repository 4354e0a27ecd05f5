"""The `s3_server` fixture: one real S3 server for each test session, started before the first test that needs it.

List this module in the root conftest's `pytest_plugins`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.servers.s3 import (
    NoS3ServerError,
    S3Server,
    is_server_named,
    prepare_s3_server,
    running_s3_server,
    started_server,
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the server before the first test: that takes minutes, once, and no test's timeout runs yet."""
    if session.config.option.collectonly:
        return
    # Tests in tests/containers have an `s3_server` of their own, from an image.
    fixtures = {
        name
        for item in session.items
        if not item.get_closest_marker("containers")
        for name in getattr(item, "fixturenames", ())
    }
    if "started_s3_server" in fixtures or ("s3_server" in fixtures and not is_server_named()):
        prepare_s3_server()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running server. Tests that need it fail without one and are never skipped: they are the proof for S3."""
    yield from _running(running_s3_server())


@pytest.fixture
def started_s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """A server that the tests have started, also where `LAKEWARDEN_TEST_S3_ENDPOINT` names another one for the other tests."""
    if is_server_named():
        yield from _running(started_server())
    else:
        yield request.getfixturevalue("s3_server")


def _running(servers: AbstractContextManager[S3Server]) -> Iterator[S3Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(servers)
        except NoS3ServerError as error:
            pytest.fail(str(error), pytrace=False)
        print(f"s3 server: {server.used}")
        yield server


@pytest.fixture
def s3_credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with its credentials in the environment and none of the user's own there."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
