"""Each batch is in the table exactly once, wherever the driver dies or is stopped: real Spark, tables and agent, and SIGKILL.

It is the part of the contract suite (`test_contract.py`) that ends drivers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitGate, GateEvent
from tests.kafka_fixture import KafkaServer
from tests.posix_session import signal_posix_session
from tests.processes import running_agent
from tests.spark import mortal_driver
from tests.spark.conftest import MakeTable
from tests.spark.connect.server import ConnectServer, connect_server
from tests.spark.formats import HAS_DELTA, catalog_options, lists_newest_only, path_of
from tests.spark.mortal_driver import STEPS, STOP, WAYS
from tests.spark.sinks.cases import CATALOGS, SCHEMA, SINKS, IcebergCase, make_case

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(1500)]

LEASE_SECONDS = "15"
"""A successor waits for two thirds of it for the lapse of a dead driver's grant. A live driver must never stall for this time."""

IN_THE_TABLE = {"published", "completed"}
"""Steps after which the batch is in the table, although Spark's checkpoint doesn't have it."""

COMMITS = ["intent", "admitted", "requested", "granted", "completed"]
"""The steps of a driver with a batch that the agent doesn't know to be committed."""


HARDEST = ("staging", "published")
"""The steps at which the table holds most of what no event has reported."""

AT_THE_SWAP = ("granted", "published", "completed")
"""The steps at which a catalog takes part: before its swap, behind it, and when the agent knows of it. The others are the same in
each catalog, and the matrix has them with Hadoop's."""

IN_EVERY_RUN = {"paimon-append", "hudi", "iceberg-upsert@rest"}
"""A sink that publishes itself, one whose format calls back, and one whose catalog commits, killed at the hardest steps; the
matrix has all sinks and steps, and catalogs `AT_THE_SWAP`. A driver that dies takes a JVM's start and a lapse of its grant, some
100 s on a busy machine."""

DEATHS = [
    pytest.param(sink, steps, way, id=f"{sink}-{name}-{way}", marks=marks)
    for sink in [*SINKS, *(f"iceberg-upsert@{catalog}" for catalog in CATALOGS)]
    if not sink.endswith("-overwrite")  # whose table is its last batch alone
    for name, steps, marks in (
        ("hardest", HARDEST, ()),
        ("at-the-swap", AT_THE_SWAP, pytest.mark.matrix),
        ("all", STEPS, pytest.mark.matrix),
    )
    for way in WAYS
    if {
        "hardest": sink in IN_EVERY_RUN and way == "kill",
        "at-the-swap": "@" in sink and way == "kill",
        "all": "@" not in sink,
    }[name]
]

CONNECT = "connect"

DEATHS_ON_CONNECT = [
    pytest.param(
        f"{sink}@{CONNECT}", steps, way, id=f"{sink}-connect-{steps[0]}-{way}", marks=pytest.mark.matrix
    )
    for steps in (STEPS[:4], STEPS[4:])
    for sink in ("parquet", "paimon-append", *(["delta-append"] if HAS_DELTA else []))
    for way in WAYS
]
"""Appends show a batch that is there twice. The example's sink is a function in Python, as it publishes by itself."""


class Servers(ExitStack):
    """A server of Spark Connect, and another one when it was killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._server: ConnectServer | None = None

    def options(self, catalog: str) -> list[str]:
        """Return the driver's options for what is named in place of a catalog."""
        if catalog != CONNECT:
            return []
        if self._server is None or self._server.process.poll() is not None:
            self._folder /= "server"
            self._folder.mkdir()
            self._server = self.enter_context(connect_server(self._folder))
        return ["--remote", self._server.url]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path) as servers:
        yield servers


@pytest.mark.parametrize(("sink", "steps", "way"), [*DEATHS, *DEATHS_ON_CONNECT])
def test_a_driver_that_ends_at_any_step_leaves_each_batch_once(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    make_table: MakeTable,
    tmp_path: Path,
    spark: SparkSession,
    in_catalog: Callable[[str], None],
    servers: Servers,
    sink: str,
    steps: tuple[str, ...],
    way: str,
) -> None:
    """Each driver but the last recovers the batch that its predecessor ended in, and ends in the next one.

    A batch that is stopped may still commit, and only then is its driver's end known to the agent: the table alone counts.
    On Spark Connect the process of the query's function is the driver, and to end Spark is to kill the server.
    """
    sink, _, catalog = sink.partition("@")
    in_catalog(catalog.removesuffix(CONNECT))
    case = make_case(sink, make_table, tmp_path, spark)
    source, events = tmp_path / "source", tmp_path / "events"
    source.mkdir()
    for number in range(len(steps) + 1):
        rows = [{"month": 1, "day": day, "flight": number} for day in (1, 2)]
        file = source / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)
        os.utime(file, (number, number))  # the order in which Spark reads them

    def drive(die_at: str) -> tuple[int, str]:
        table = str(case.folder) if isinstance(case, IcebergCase) else path_of(case.sink.table)
        program = [sys.executable, str(mortal_driver.__file__), "--sink", sink, "--table", table]
        program += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
        program += ["--source", str(source), "--checkpoint", str(tmp_path / "checkpoint")]
        program += ["--events", str(events), "--die-at", die_at, "--way", way, *servers.options(catalog)]
        stop = tmp_path / f"stop-{die_at}"
        stopping = {STOP: str(stop)} if way != "kill" and die_at != "none" else {}
        driver = subprocess.Popen(
            program,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | stopping | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            _, stderr = driver.communicate(timeout=300)
        finally:
            signal_posix_session(driver.pid, signal.SIGKILL)
        return driver.returncode, stderr.decode()[-3000:]

    recorded: list[list[tuple[int, str, str]]] = []  # batch, step, transaction: by driver
    committed: dict[int, str] = {}  # the transaction by the batch
    store = {"S3_ENDPOINT": endpoint} if (endpoint := catalog_options().get("s3.endpoint")) else {}
    with running_agent(kafka, topic_prefix, tmp_path, VALIDITY_SECONDS=LEASE_SECONDS, **store):
        for batch, step in enumerate((*steps, "none")):
            status, stderr = drive(f"{step}:{batch}" if step != "none" else step)
            assert status == (0 if step == "none" or way != "kill" else -signal.SIGKILL), stderr
            there = Counter(case.flights())
            possible = {batch + (step in {"none", *IN_THE_TABLE})}
            if way != "kill" and step != "none":
                possible = {batch, batch + 1}
            assert there in [dict.fromkeys(range(number), 2) for number in possible], step
            if lists_newest_only():
                committed |= {number: transaction for _, number, transaction in case.commits()}
            recorded.append([json.loads(line) for line in events.read_text().splitlines()])
            events.unlink()

    commits = case.commits()
    committed |= {number: transaction for _, number, transaction in commits}
    (writer,) = {writer for writer, _, _ in commits}
    assert writer.startswith("mortal:")
    assert [batch for _, batch, _ in commits] == list(range(len(steps) + 1))[
        -1 if lists_newest_only() else 0 :
    ]
    for batch, step in enumerate(steps if way == "kill" else ()):
        killed = {transaction for number, _, transaction in recorded[batch] if number == batch}
        recovered = [
            (what, transaction)
            for number, what, transaction in recorded[batch + 1]
            if number == batch and what != "markers"  # of the driver, if the sink publishes them there
        ]
        agent_knows = step == "completed"
        assert [what for what, _ in recovered] == (
            ["intent", "already-committed"] if agent_knows else COMMITS
        ), step
        # The files in the table are those of the driver that was killed, if it had published them.
        allowed = killed if step in IN_THE_TABLE else {transaction for _, transaction in recovered}
        assert committed.get(batch) in (allowed | {None} if lists_newest_only() else allowed), step


@pytest.mark.parametrize("durable", [True, False], ids=["after-the-commit", "before-it"])
def test_a_publish_without_a_response_is_looked_up_in_the_table(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    make_table: MakeTable,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    durable: bool,
) -> None:
    """If it is found, it is committed. If not, a new transaction waits until the grant has lapsed, looks again, and writes."""
    case = make_case("paimon-append", make_table, tmp_path)
    case.fail_the_publish(monkeypatch, durable=durable)
    steps: list[GateEvent] = []
    with (
        running_agent(kafka, topic_prefix, tmp_path, VALIDITY_SECONDS=LEASE_SECONDS),
        CommitGate(
            kafka.bootstrap_servers,
            topic_prefix=topic_prefix,
            heartbeat_seconds=2.0,
            admission_timeout_seconds=120.0,
            observer=steps.append,
        ) as gate,
    ):
        batch = spark.createDataFrame([(1, 1, 7)], "month int, day int, flight long")
        gate.foreach_batch(case.sink, table=case.sink.table, writer="w")(batch, 0)

    assert case.flights() == [7]
    assert [(writer, batch_id) for writer, batch_id, _ in case.commits()] == [("w", 0)]
    ends = [(step.attempt, step.what) for step in steps if step.what in ("failed", "completed")]
    assert ends == ([(1, "completed")] if durable else [(1, "failed"), (2, "completed")])
