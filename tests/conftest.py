"""What every test relies on: the servers, which are named when the suite starts, and the runner of asynchronous tests."""

from __future__ import annotations

import os
import signal
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lakewarden.agent.embedded import kafka

# A shell ignores SIGINT for what it runs in the background, and each program that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long a generated example takes says something about the machine's load, and nothing about the code.
settings.register_profile("lakewarden", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakewarden")

pytest_plugins = ["tests.kafka_fixture", "tests.s3_fixture", "tests.gcs_fixture", "tests.azure_fixture"]

SERVERS = {
    "kafka": "Kafka",
    "s3_server": "S3",
    "gcs_server": "Google Cloud Storage",
    "azure_server": "Azure Blob",
}
UNIT_TESTS = Path(__file__).parent / "unit"
USED = pytest.StashKey[list[str]]()
SENT_BY_WORKER = "servers used"


def pytest_configure() -> None:
    """Each worker of pytest-xdist has free ports of its own, so that none takes a port that another one is about to use."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    kafka.PORTS = kafka.PORTS[int(worker) :: int(workers)]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything under `tests/unit` starts no server: it is part of `make unit`."""
    if UNIT_TESTS in item.path.parents:
        item.add_marker(pytest.mark.unit)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a unit test that needs a server."""
    for item in items:
        needed = SERVERS.keys() & set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("unit") and needed:
            raise pytest.UsageError(f"{item.nodeid} is a unit test and needs a server: {', '.join(needed)}")


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> None:
    """Mark each asynchronous test for pytest-asyncio, unless its module is marked for anyio's plugin (decision 0010)."""
    if not collector.istestfunction(obj, name):
        return
    function = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    marks = {mark.name for mark in (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))}
    if iscoroutinefunction(function) and marks.isdisjoint({"anyio", "asyncio"}):
        pytest.mark.asyncio(obj)


@pytest.fixture(scope="session", autouse=True)
def servers(request: pytest.FixtureRequest) -> None:
    """Start the servers that the collected tests need, before the first test, and print which they are.

    A server that can't be started is reported here. It fails the tests that need it, and no other test. Each worker of
    pytest-xdist has servers of its own.
    """
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    used = request.config.stash.setdefault(USED, [])
    for fixture, title in SERVERS.items():
        if fixture not in needed:
            continue
        try:
            line = f"{title}: {request.getfixturevalue(fixture).used}"
        except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - reported here; raised again by the tests that need the server
            line = f"{title}: none ({' '.join(str(failure).split())})"
        used.append(line)
        _write_line(request.config, line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: send the list to the process that prints the summary."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[SENT_BY_WORKER] = session.config.stash.get(USED, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the process that prints the summary: collect a worker's list."""
    lines = getattr(node, "workeroutput", {}).get(SENT_BY_WORKER, [])
    node.config.stash.setdefault(USED, []).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if used := config.stash.get(USED, []):
        terminalreporter.section("servers used")
        for line in sorted(set(used)):
            terminalreporter.line(line)


def _write_line(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)
