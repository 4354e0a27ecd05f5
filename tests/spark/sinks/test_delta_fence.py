"""Delta's commit file on a real S3 server is put if absent: late puts, lost answers, other log stores, other drivers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.delta.fence import LOG_STORE
from tests.kafka_fixture import KafkaServer
from tests.posix_session import posix_session_members
from tests.processes import running_agent, start_program
from tests.servers.java_classes import HADOOP_VERSION, s3a_jars
from tests.servers.proxy import Cut, Proxy, Refusal, Request
from tests.servers.s3 import S3Server
from tests.spark import delta_s3_driver
from tests.spark.delta_s3_driver import OWN_LOG_STORE
from tests.spark.fake_agent import fake_agent, grant_everything
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.wide]

START_SECONDS = 600.0
"""For a driver's answer. It only ends a hang."""


class Driver:
    """A driver in a process and a session of its own (`delta_s3_driver.py`)."""

    def __init__(
        self, folder: Path, name: str, *, kafka: KafkaServer, topic_prefix: str, endpoint: str
    ) -> None:
        self._answers = folder / f"{name}.jsonl"
        self._answers.touch()
        self._log = folder / f"{name}.log"
        self._asked = 0
        program = [sys.executable, str(delta_s3_driver.__file__), "--answers", str(self._answers)]
        program += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
        program += ["--jars", ",".join(map(str, sorted(s3a_jars().glob("*.jar"))))]
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "text": True, "start_new_session": True}
        self.process = start_program(program, self._log, {"AWS_ENDPOINT_URL_S3": endpoint}, **options)

    def ask(self, do: str, **what: Any) -> int:
        """Send a command; return its number."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps({'do': do, **what})}\n")
        self.process.stdin.flush()
        self._asked += 1
        return self._asked - 1

    def answer(self, number: int) -> Any:
        """Wait for the answer to a command. Raise its error."""

        def answered() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            return self._answers.read_text().count("\n") > number

        wait_until(answered, START_SECONDS)
        found = json.loads(self._answers.read_text().splitlines()[number])
        assert "error" not in found, f"{found['error']}\n{self._log.read_text()[-3000:]}"
        return found["result"]

    def do(self, do: str, **what: Any) -> Any:
        return self.answer(self.ask(do, **what))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver, its JVM and all their processes."""
        for process in posix_session_members(os.getsid(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Table:
    """A Delta table in a bucket of its own, as the store has it."""

    def __init__(self, server: S3Server, scheme: str = "s3a") -> None:
        self.bucket = server.bucket()
        self.uri = f"{scheme}://{self.bucket}/flights"
        self._client = server.new_client()

    def put_of(self, version: int) -> re.Pattern[bytes]:
        """The request that puts a commit."""
        return re.compile(rb"PUT /%b/%b[ ?]" % (self.bucket.encode(), _key(version).encode()))

    def puts(self, version: int) -> Callable[[Request], bool]:
        return lambda request: self.put_of(version).match(request.head) is not None

    def conditional_puts(self, status: int, times: int) -> Refusal:
        """Puts of files that must not exist, and the answer to the first ones."""
        head = re.compile(rb"(?is)put /%b/.*if-none-match" % self.bucket.encode())
        return Refusal(head, status, times)

    def commit(self, version: int) -> bytes:
        """Return a commit file."""
        body: bytes = self._client.get_object(Bucket=self.bucket, Key=_key(version))["Body"].read()
        return body

    def commit_as_a_stranger(self, version: int, *actions: dict[str, Any]) -> bytes:
        """Commit this version without the gate, as a driver with a transaction of its own. Return the file."""
        info = {"timestamp": 0, "operation": "STRANGER", "txnId": str(uuid.uuid4())}
        lines = [{"commitInfo": info}, *actions]
        body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        self._client.put_object(Bucket=self.bucket, Key=_key(version), Body=body)
        return body

    def file_of(self, version: int) -> dict[str, Any]:
        """Return the action that adds the file of this version. Once more it adds no rows, but is in conflict with an upsert."""
        actions: list[dict[str, Any]] = [json.loads(line) for line in self.commit(version).splitlines()]
        return next(action for action in actions if "add" in action)

    def batches(self) -> list[tuple[int, str, int]]:
        """Return version, writer and number of the batches in the log, oldest first."""
        listed = self._client.list_objects_v2(Bucket=self.bucket, Prefix="flights/_delta_log/")
        names = sorted(each["Key"].rpartition("/")[2] for each in listed["Contents"])
        found = []
        for version in (int(name.partition(".")[0]) for name in names if re.fullmatch(r"\d+\.json", name)):
            for line in self.commit(version).splitlines():
                for kind, action in json.loads(line).items():
                    if kind == "txn":
                        found.append((version, action["appId"], action["version"]))
        return found


def _key(version: int) -> str:
    return f"flights/_delta_log/{version:020d}.json"


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def driver(
    kafka: KafkaServer, s3_server: S3Server, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """One driver for the tests of this module, and an agent that grants every commit. Between it and S3 is the proxy."""
    prefix = f"delta-fence-{uuid.uuid4().hex[:8]}"
    folder = tmp_path_factory.mktemp("delta-fence")
    with (
        pytest.MonkeyPatch.context() as patched,
        fake_agent(kafka.bootstrap_servers, prefix, grant_everything),
    ):
        for name, value in s3_server.environment.items():
            patched.setenv(name, value)
        driver = Driver(folder, "driver", kafka=kafka, topic_prefix=prefix, endpoint=proxy.endpoint)
        try:
            yield driver
        finally:
            driver.close()


@pytest.fixture
def table(driver: Driver, s3_server: S3Server) -> Table:
    found = Table(s3_server)
    driver.do("create", table=found.uri)
    return found


def append(table: Table, batch: int, flights: Sequence[int], **what: Any) -> dict[str, Any]:
    """The command that appends a batch."""
    return {"table": table.uri, "mode": "append", "writer": "w", "batch": batch, "flights": flights} | what


def write(driver: Driver, table: Table, batch: int, flights: Sequence[int], **what: Any) -> Any:
    return driver.do("write", **append(table, batch, flights, **what))


@pytest.mark.parametrize("conflict", [False, True], ids=["append", "conflict"])
def test_a_put_that_comes_late_does_not_replace_the_commit_of_another_driver(
    *, driver: Driver, proxy: Proxy, table: Table, conflict: bool
) -> None:
    """The other one commits after this driver has looked whether the version is free. Delta's check decides what follows.

    The table was opened with Delta's own log store when it was created, and Delta has kept it.
    """
    mode = "upsert" if conflict else "append"
    write(driver, table, 0, [1], mode=mode)

    with proxy.holding(table.puts(2)) as hold:
        asked = driver.ask("write", **append(table, 1, [2], mode=mode))
        wait_until(lambda: bool(hold.caught))
        other = table.commit_as_a_stranger(2, *([table.file_of(1)] if conflict else []))
        hold.release()
        written = driver.answer(asked)

    assert written["warnings"] == []
    assert table.commit(2) == other
    assert table.batches() == [(1, "w", 0), (3, "w", 1)]
    assert driver.do("rows", table=table.uri) == [1, 2]
    assert (written["attempts"], written["version"]) == (2 if conflict else 1, "3")
    assert set(written["log_stores"]) == {LOG_STORE}


def test_a_put_whose_answer_is_lost_is_recognised(driver: Driver, proxy: Proxy, table: Table) -> None:
    proxy.arm(Cut(table.put_of(1), answered=True, seconds=0.5))

    written = write(driver, table, 0, [1])

    assert proxy.cuts[-1].request == table.put_of(1)
    assert table.batches() == [(1, "w", 0)]
    assert driver.do("rows", table=table.uri) == [1]
    assert (written["attempts"], written["version"], written["warnings"]) == (1, "1", [])


@pytest.mark.parametrize("status", [409, 503])
def test_a_put_that_is_refused_for_the_moment_is_repeated(
    *, driver: Driver, proxy: Proxy, table: Table, status: int
) -> None:

    with proxy.refusing(table.conditional_puts(status, times=2)) as refusal:
        written = write(driver, table, 0, [1])

    assert refusal.refused == 2
    assert table.batches() == [(1, "w", 0)]
    assert (written["attempts"], written["version"], written["warnings"]) == (1, "1", [])


def test_a_log_store_that_the_user_has_chosen_stays(driver: Driver, s3_server: S3Server) -> None:
    table = Table(s3_server, "s3")
    driver.do("create", table=table.uri)

    written = write(driver, table, 0, [1])

    assert (written["log_stores"], written["warnings"]) == ([OWN_LOG_STORE], [])


def test_a_store_without_conditional_puts_gets_the_commit_without_condition_and_a_warning(
    driver: Driver, proxy: Proxy, table: Table
) -> None:

    with proxy.refusing(table.conditional_puts(501, times=100)) as refusal:
        warnings = [write(driver, table, batch, [batch])["warnings"] for batch in range(2)]

    assert refusal.refused == 1, "the driver asks once"
    assert driver.do("rows", table=table.uri) == [0, 1]
    assert [len(each) for each in warnings] == [1, 0]
    assert warnings[0][0].startswith("delta.not-fenced")
    assert "has no conditional put" in warnings[0][0]


def test_without_hadoops_s3a_of_3_4_the_sink_warns_once(driver: Driver, table: Table) -> None:
    driver.do("hide-internals")

    written = [write(driver, table, batch, [batch]) for batch in range(2)]

    assert driver.do("rows", table=table.uri) == [0, 1]
    assert LOG_STORE not in {each for one in written for each in one["log_stores"]}
    assert [len(one["warnings"]) for one in written] == [1, 0]
    assert f"this is Hadoop {HADOOP_VERSION}" in written[0]["warnings"][0]


@pytest.mark.matrix
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_driver_that_is_suspended_in_its_commit_beyond_the_lease_loses_no_commit(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path, s3_credentials: S3Server, mode: str
) -> None:
    """Its put is on the way while its whole session is suspended, and the agent grants the version to another driver."""
    server = s3_credentials
    table = Table(server)
    settings = {"S3_ENDPOINT": server.endpoint, "VALIDITY_SECONDS": "9"}
    options: dict[str, Any] = {"kafka": kafka, "topic_prefix": topic_prefix}
    with (
        running_agent(kafka, topic_prefix, tmp_path, **settings),
        Proxy(server.endpoint) as proxy,
        contextlib.closing(Driver(tmp_path, "other", endpoint=server.endpoint, **options)) as other,
        contextlib.closing(Driver(tmp_path, "suspended", endpoint=proxy.endpoint, **options)) as suspended,
    ):
        other.do("create", table=table.uri)
        write(suspended, table, 0, [1], mode=mode)
        with proxy.holding(table.puts(2)) as hold:
            asked = suspended.ask("write", **append(table, 1, [2], mode=mode))
            wait_until(lambda: bool(hold.caught), START_SECONDS)
            suspended.signal(signal.SIGSTOP)
            granted = write(other, table, 0, [3], mode=mode, writer="other")
            commit = table.commit(2)
            hold.release()
            suspended.signal(signal.SIGCONT)
            suspended.answer(asked)

        assert granted["version"] == "2"
        assert table.commit(2) == commit
        assert table.batches() == [(1, "w", 0), (2, "other", 0), (3, "w", 1)]
        assert other.do("rows", table=table.uri) == [1, 2, 3]
