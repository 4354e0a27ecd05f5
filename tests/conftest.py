"""What every test relies on: the servers, which are named when the suite starts, and the runner of asynchronous tests."""

from __future__ import annotations

import signal
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

# A shell that runs this in the background has SIGINT ignored, and so would every program that a test stops with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.kafka_fixture", "tests.s3_fixture", "tests.gcs_fixture", "tests.azure_fixture"]

SERVERS = {
    "kafka": "Kafka",
    "s3_server": "S3",
    "gcs_server": "Google Cloud Storage",
    "azure_server": "Azure Blob",
}
UNIT_TESTS = Path(__file__).parent / "unit"
USED = pytest.StashKey[list[str]]()
TOLD_BY_WORKER = "servers used"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything under `tests/unit` starts no server: it is part of `make unit`."""
    if UNIT_TESTS in item.path.parents:
        item.add_marker(pytest.mark.unit)


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
    """Start, before the first test, the servers that any collected test wants, and say which they are.

    One that can't be had is said here, and fails the tests that need it, and only them. Each worker of pytest-xdist has
    servers of its own.
    """
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    used = request.config.stash.setdefault(USED, [])
    for fixture, title in SERVERS.items():
        if fixture not in wanted:
            continue
        try:
            line = f"{title}: {request.getfixturevalue(fixture).used}"
        except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - told here, raised again where needed
            line = f"{title}: none ({' '.join(str(failure).split())})"
        used.append(line)
        _say(request.config, line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: tell the one that prints."""
    if (told := getattr(session.config, "workeroutput", None)) is not None:
        told[TOLD_BY_WORKER] = session.config.stash.get(USED, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the one that prints: note what a worker told."""
    told = getattr(node, "workeroutput", {}).get(TOLD_BY_WORKER, [])
    node.config.stash.setdefault(USED, []).extend(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if used := config.stash.get(USED, []):
        terminalreporter.section("servers used")
        for line in sorted(set(used)):
            terminalreporter.line(line)


def _say(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)
