"""The `azure_server` fixture: one Azure Blob server per test session, started if a test needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.azure import AzureServer, prepare_azure_server, running_azure_server
from tests.servers.program import NoServerError


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the server, if necessary, before the first test: this may take longer than a test's timeout."""
    if session.config.option.collectonly:
        return
    if any("azure_server" in getattr(item, "fixturenames", ()) for item in session.items):
        prepare_azure_server()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """Fails, and never skips, if there is no server: a passing suite would otherwise not have tested Azure."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_azure_server())
        except NoServerError as error:
            pytest.fail(str(error), pytrace=False)
        yield server


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the credentials of both clouds that the machine may have."""
    for name in os.environ:
        if name.startswith(("GOOGLE_", "AZURE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def azure_credentials(
    azure_server: AzureServer, no_cloud: None, monkeypatch: pytest.MonkeyPatch
) -> AzureServer:
    """The server, with account and key in the environment, where the standard chain reads them."""
    for name, value in azure_server.environment.items():
        monkeypatch.setenv(name, value)
    return azure_server
