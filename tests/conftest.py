"""What every test relies on: the servers, which are named when they start, and the runner of asynchronous tests."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from lakewarden.agent.embedded import kafka
from tests.forked import fork_commands

# A shell ignores SIGINT for what it runs in the background, and each program that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long a generated example takes says something about the machine's load, and nothing about the code.
# And one commit has one result: other examples than last time are drawn in `make test-matrix` only.
settings.register_profile(
    "lakewarden",
    deadline=None,
    derandomize="LAKEWARDEN_TEST_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lakewarden")

pytest_plugins = ["tests.kafka_fixture", "tests.store_fixtures"]

SERVERS = {
    "kafka": "Kafka",
    "s3_server": "S3",
    "gcs_server": "Google Cloud Storage",
    "azure_server": "Azure Blob",
}
UNIT_TESTS = Path(__file__).parent / "unit"
LONG = ("spark",)
"""The folders whose tests take longest, as they share a session."""
OWN_PROCESSES = {
    "test_delta_fence.py",
    "test_exactly_once.py",
    "test_java_reads.py",
    "test_logging.py",
    "test_paimon_fence.py",
    "test_paimon_processes_example.py",
}
"""The files of tests/spark whose tests use no Spark, or start it in processes of their own, most of it."""
BESIDE_THE_CONTRACT = "test_iceberg_sink.py"
"""In `make test-all`, where the rows have a session of their own."""
NOT_RUN = {"wide": "make test-all", "matrix": "make test-matrix"}
"""The command that runs the tests with this mark. A test with both marks belongs to the last one."""
PORT_SHARES = 64
USED = pytest.StashKey[list[str]]()
DESELECTED = pytest.StashKey[Counter[str]]()
USED_BY_WORKER, DESELECTED_BY_WORKER = "servers used", "deselected"


@pytest.fixture(scope="module", autouse=True)
def _logging_kept() -> Iterator[None]:
    """A command that runs in the tests' own process configures the logging of all tests."""
    ours, root = structlog.get_config(), logging.getLogger()
    handlers, level, of_clients = list(root.handlers), root.level, logging.getLogger("aiokafka").level
    yield
    structlog.configure(**ours)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("aiokafka").setLevel(of_clients)


def pytest_configure() -> None:
    kafka.PORTS = _own_ports()
    kafka.EmbeddedKafka.version = os.environ.get("LAKEWARDEN_TEST_KAFKA_VERSION") or kafka.KAFKA_VERSION
    # JVMs of tests live for minutes: what the second compiler would make faster isn't worth what it takes.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))


def _own_ports() -> range:
    """Ports that no other process of tests on this machine takes, so that none takes one that another is about to use."""
    for share in range(PORT_SHARES):
        path = Path(tempfile.gettempdir(), f"lakewarden-tests-{os.getuid()}-ports-{share}")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return kafka.PORTS[share::PORT_SHARES]  # the lock ends with this process
        os.close(lock)
    return kafka.PORTS


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Nothing that is imported and collected becomes garbage: to look for it would take three of eight seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything under `tests/unit` starts no server: it is part of `make unit`."""
    if UNIT_TESTS in item.path.parents:
        item.add_marker(pytest.mark.unit)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a unit test that needs a server. Sort the long tests before the short ones, which fill the workers at the end."""
    for item in items:
        needed = SERVERS.keys() & set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("unit") and needed:
            raise pytest.UsageError(f"{item.nodeid} is a unit test and needs a server: {', '.join(needed)}")
    items.sort(key=lambda item: item.path.relative_to(UNIT_TESTS.parent).parts[0] not in LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one worker, and those on Spark in two: a session costs half a minute of CPU time.

    In `make test-all` they run in three, because one would still run for minutes when all others have ended. Spark Connect's
    tests share a server, and files whose tests start Spark in processes of their own need no session to share. The tests of
    `tests/exhaustive` share nothing and compute for minutes: any worker runs the next one.
    """
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    long = config.getoption("markexpr").startswith("wide")

    class BySession(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            folders = Path(file).parts
            if folders[1] == "exhaustive":
                return nodeid
            if folders[:2] != ("tests", "spark") or folders[-1] in OWN_PROCESSES:
                return file
            if folders[2] == "connect" or (folders[2] == "rows" and long):
                return folders[2]
            contract = (
                folders[-1] in {"test_contract.py", BESIDE_THE_CONTRACT if long else ""}
                or folders[2] == "rows"
            )
            return "contract and rows" if contract else "gate, jobs, sinks and queries"

    return BySession(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Only unit tests start Python for each process of the product."""
    fork_commands(item.get_closest_marker("unit") is None)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the tests of the other commands, for the line at the end."""
    for item in items:
        marks = [mark for mark in NOT_RUN if item.get_closest_marker(mark)]
        if marks:
            item.config.stash.setdefault(DESELECTED, Counter())[marks[-1]] += 1


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> None:
    """Mark each asynchronous test for pytest-asyncio, unless its module is marked for anyio's plugin (decision 0010)."""
    if not collector.istestfunction(obj, name):
        return
    function = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    marks = {mark.name for mark in (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))}
    if iscoroutinefunction(function) and marks.isdisjoint({"anyio", "asyncio"}):
        pytest.mark.asyncio(obj)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Print which server the first test that needs one has started, or why it can't be had.

    Each worker of pytest-xdist has servers of its own, and those only that its tests need.
    """
    if (title := SERVERS.get(fixturedef.argname)) is None:
        return (yield)
    used = "none"
    try:
        server = yield
        used = server.used
    except (Exception, pytest.fail.Exception) as failure:
        used = f"none ({' '.join(str(failure).split())})"
        raise
    finally:
        line = f"{title}: {used}"
        request.config.stash.setdefault(USED, []).append(line)
        _write_line(request.config, line)
    return server


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: send what the process that prints the summary needs."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[USED_BY_WORKER] = session.config.stash.get(USED, [])
        output[DESELECTED_BY_WORKER] = dict(session.config.stash.get(DESELECTED, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the process that prints the summary: collect what a worker has sent. All workers have deselected the same tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash.setdefault(USED, []).extend(output.get(USED_BY_WORKER, []))
    node.config.stash[DESELECTED] = node.config.stash.get(DESELECTED, Counter()) | Counter(
        output.get(DESELECTED_BY_WORKER, {})
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if used := config.stash.get(USED, []):
        terminalreporter.section("servers used")
        for line in sorted(set(used)):
            terminalreporter.line(line)
    if deselected := config.stash.get(DESELECTED, None):
        counts = (f"{deselected[mark]:,} tests of `{NOT_RUN[mark]}`" for mark in NOT_RUN if deselected[mark])
        terminalreporter.line(f"not run: {', '.join(counts)}")


def _write_line(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)
