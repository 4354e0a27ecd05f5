"""The `gcs_server` fixture: one server that speaks Google Cloud Storage a session, started when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.servers.gcs import GcsServer, prepare_gcs_server, running_gcs_server
from tests.servers.program import NoServerError


def pytest_collection_finish(session: pytest.Session) -> None:
    """A first run builds the server, which takes minutes: here, where no test's timeout runs."""
    if session.config.option.collectonly:
        return
    if any("gcs_server" in getattr(item, "fixturenames", ()) for item in session.items):
        prepare_gcs_server()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """Never skipped: a suite that passes without its server would say nothing about Google Cloud Storage."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_gcs_server())
        except NoServerError as error:
            pytest.fail(str(error), pytrace=False)
        yield server


@pytest.fixture
def gcs_credentials(gcs_server: GcsServer, no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """The server, with a token where the standard chain looks."""
    for name, value in gcs_server.environment.items():
        monkeypatch.setenv(name, value)
    return gcs_server
