"""Fixtures: one small SparkSession for all tests here, a harness, and Paimon tables."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory, Schema
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitGate
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.servers.iceberg_catalogs import (
    running_hive_metastore,
    running_nessie,
    running_postgresql,
    running_rest_catalog,
)
from tests.servers.s3 import S3Server, started_server
from tests.spark.cluster import ON_CLUSTER, running_cluster
from tests.spark.connect.server import ON_CONNECT, connect_server
from tests.spark.fake_agent import PATIENCE_SECONDS, FakeAgent, grant_everything
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG, ICEBERG_CATALOG, OBJECTS, format_settings
from tests.spark.harness import Harness
from tests.spark.java_paimon import JavaPaimon, java_paimon

SCHEMA = pa.schema(
    [
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("flight", pa.int64()),
        ("departure", pa.string()),
        ("arrival", pa.string()),
    ]
)

MakeTable = Callable[..., str]

_HUDI_TESTS = (
    "test_hudi_commit_cut.py",
    "test_hudi_contention.py",
    "test_hudi_contest.py",
    "test_hudi_on_s3.py",
    "test_hudi_sink.py",
    "test_hudi_watched.py",
)

# With PySpark 3.5, those of Hudi, unless a release of another format is named (`formats.py`).
collect_ignore = [
    f"sinks/{name}"
    for here, names in (
        (HAS_DELTA, ("test_delta_sink.py", "test_format_conflicts.py", "test_watched_commits.py")),
        (HAS_HUDI, _HUDI_TESTS),
        (HAS_ICEBERG, ("test_iceberg_sink.py",)),
    )
    for name in names
    if not here
]
if not ON_CLUSTER:
    collect_ignore.append("test_cluster.py")


@pytest.fixture(scope="session")
def session_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The master of the tests' session, and what belongs to it."""
    if not ON_CLUSTER:
        yield {"master": "local[2,4]"}
        return
    with running_cluster(tmp_path_factory.mktemp("cluster")) as settings:
        yield settings


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, session_master: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Two cores, and `conf/spark-defaults.conf`; with Hudi, or Delta and Iceberg, if this PySpark has one."""
    if ON_CONNECT:
        with connect_server(tmp_path_factory.mktemp("connect")) as server:
            session = SparkSession.builder.remote(server.url).create()
            yield session
            session.stop()
        return
    s3 = any("nessie" in item.nodeid for item in request.session.items)
    settings: dict[str, Any] = session_master | format_settings(s3=s3)
    session = spark_session("lakewarden-tests", memory="1g", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def catalog_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, str]]]:
    """A function that returns the options of a catalog of Iceberg by its name, and starts its server the first time."""
    with ExitStack() as servers:

        @cache
        def options(name: str) -> dict[str, str]:
            folder = tmp_path_factory.mktemp(name)
            if name == "postgresql":
                return {"type": "jdbc", "uri": f"jdbc:{servers.enter_context(running_postgresql())}"}
            if name == "hive":
                return {"type": "hive", "uri": servers.enter_context(running_hive_metastore(folder))}
            if name == "nessie":
                s3 = servers.enter_context(started_server())
                bucket = s3.bucket()
                uri = servers.enter_context(running_nessie(folder, bucket, s3))
                return {
                    "type": "rest",
                    "uri": uri,
                    "warehouse": "warehouse",
                    "s3.endpoint": s3.endpoint,
                    "s3.access-key-id": s3.access_key,
                    "s3.secret-access-key": s3.secret_key,
                    OBJECTS: f"{s3.objects}/{bucket}",
                }
            rest = running_rest_catalog(folder, {"warehouse": f"{folder / 'warehouse'}"})
            return {"type": "rest", "uri": servers.enter_context(rest)}

        yield options


@pytest.fixture
def in_catalog(
    catalog_options: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """A function that lets `iceberg_name` use a catalog, in this test and in the programs that it starts. '': Hadoop's."""

    def use(name: str) -> None:
        if name:
            options = catalog_options(name)
            monkeypatch.setenv(ICEBERG_CATALOG, json.dumps(options))
            if OBJECTS in options:  # the agent has its locks there
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["s3.access-key-id"])
                monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["s3.secret-access-key"])
                monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options["s3.endpoint"])

    return use


@pytest.fixture
def harness(kafka: KafkaServer, topic_prefix: str) -> Iterator[Harness]:
    """Agents and gates of one test."""
    with Harness(kafka, topic_prefix) as harness:
        yield harness


@pytest.fixture
def agent(harness: Harness) -> FakeAgent:
    """An agent that admits and grants every transaction."""
    return harness.agent(grant_everything)


@pytest.fixture
def gate(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> Iterator[CommitGate]:
    """A gate with the product's own agent."""
    with (
        running_agent(kafka, topic_prefix, tmp_path),
        CommitGate(
            kafka.bootstrap_servers, topic_prefix=topic_prefix, admission_timeout_seconds=PATIENCE_SECONDS
        ) as gate,
    ):
        yield gate


@pytest.fixture
def another_gate(gate: CommitGate) -> Iterator[Callable[..., CommitGate]]:
    """A function that returns a gate of another driver, with options of its own, beside `gate`."""
    with ExitStack() as gates:

        def another(**options: Any) -> CommitGate:
            made = CommitGate(
                gate._channel.bootstrap_servers,
                topic_prefix=gate._channel.topics.prefix,
                **({"admission_timeout_seconds": PATIENCE_SECONDS} | options),
            )
            return gates.enter_context(made)

        yield another


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """A function that creates a table, by default an append table partitioned by month and day, and returns its path."""

    def make(
        name: str = "flights",
        *,
        folder: Path = tmp_path,
        partition_keys: tuple[str, ...] = ("month", "day"),
        schema: pa.Schema = SCHEMA,
        primary_keys: tuple[str, ...] = (),
        **options: str,
    ) -> str:
        keys: dict[str, Any] = {"partition_keys": partition_keys, "primary_keys": primary_keys}
        return create_table(str(folder / "warehouse"), name, schema, options=options, **keys)

    return make


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as paimon:
        yield paimon


def create_table(
    warehouse: str,
    name: str,
    schema: pa.Schema,
    *,
    partition_keys: Sequence[str] = (),
    primary_keys: Sequence[str] = (),
    options: dict[str, str] | None = None,
    store: dict[str, str] | None = None,
) -> str:
    """Create a Paimon table and return its place. `store`: the options of the warehouse's store."""
    catalog = CatalogFactory.create({"warehouse": warehouse, **(store or {})})
    catalog.create_database("test", ignore_if_exists=True)
    made = Schema.from_pyarrow_schema(schema, list(partition_keys), list(primary_keys), options)
    catalog.create_table(f"test.{name}", made, ignore_if_exists=False)
    return f"{warehouse}/test.db/{name}"


def commit_alone(
    table: str,
    rows: list[dict[str, Any]],
    *,
    overwrite: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    """Commit rows as pypaimon alone does. `overwrite`: in place of these partitions; `options`: of the table's store."""
    from lakewarden.spark_jobs.sinks.paimon.table import address
    from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema

    opened = address(table, options).open()
    builder = opened.new_batch_write_builder()
    if overwrite is not None:
        builder = builder.overwrite(overwrite or None)
    write, committer = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(rows, schema=arrow_schema(opened)))
    committer.commit(write.prepare_commit())
    write.close()
    committer.close()


def rows_of(table: str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return all rows of the table, sorted."""
    from lakewarden.spark_jobs.sinks.paimon.table import address

    builder = address(table, options).open().new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
    return sorted(rows, key=repr)


def paimon_options(server: S3Server) -> dict[str, str]:
    """Return the options of tables on this server."""
    return {
        "s3.endpoint": server.endpoint,
        "s3.access-key": server.access_key,
        "s3.secret-key": server.secret_key,
        "s3.region": server.region,
        "s3.path-style-access": "true",
    }


def snapshots_of(table: str) -> list[Any]:
    """Return all snapshots of the table, oldest first."""
    from lakewarden.spark_jobs.sinks.paimon.table import address

    return list(address(table).open().snapshot_manager().list_snapshots())


def data_files_of(table: str) -> set[str]:
    """Return the names of the data files on disk, committed or not."""
    return {path.name for path in Path(table).rglob("data-*.parquet")}


def index_files_of(table: str) -> set[str]:
    """Return the names of the index files on disk, committed or not."""
    return {path.name for path in (Path(table) / "index").glob("*")}


def pytest_itemcollected(item: pytest.Item) -> None:
    if "hudi" in item.nodeid:
        item.add_marker(pytest.mark.hudi)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets of collected results to the garbage collector, which is no failure of a test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            # PySpark 3.5 compares versions by distutils.
            item.add_marker(pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"))


@pytest.fixture(scope="session")
def _imports_frozen() -> None:
    """What Spark, pandas and pypaimon have imported isn't looked at again by each test's collection, which takes 0.1 s of CPU."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_socket_outlives_its_test(_imports_frozen: None) -> Iterator[None]:
    """Collect PySpark's sockets here, so that no later test fails for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
