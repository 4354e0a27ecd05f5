"""The `gcs_server` fixture: one Google Cloud Storage emulator per test session, started if a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.servers.gcs import GcsServer, prepare_gcs_server, running_gcs_server
from tests.servers.program import NoServerError


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the server, if necessary, before the first test: this takes minutes."""
    if session.config.option.collectonly:
        return
    if any("gcs_server" in getattr(item, "fixturenames", ()) for item in session.items):
        prepare_gcs_server()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """Fails, and never skips, if there is no server: a passing suite would otherwise not have tested Google."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_gcs_server())
        except NoServerError as error:
            pytest.fail(str(error), pytrace=False)
        yield server


@pytest.fixture
def gcs_credentials(gcs_server: GcsServer, no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """The server, with a token in the environment, where the standard chain reads it."""
    for name, value in gcs_server.environment.items():
        monkeypatch.setenv(name, value)
    return gcs_server
