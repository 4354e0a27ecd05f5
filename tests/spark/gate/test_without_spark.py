"""`pip install lakewarden` alone: the gate in an environment without Spark, with the product's own agent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.spark.plain_python import plain_environment

pytestmark = pytest.mark.real

SCRIPT = """
import asyncio
import importlib.util
import json
import sys

from lakewarden import spark_jobs
from lakewarden.spark_jobs import AlreadyCommitted, AsyncGate, CommitAborted, CommitGate, UnsupportedSpark

brokers, prefix, table = sys.argv[1:]


async def conflict(gate):
    computing = asyncio.Event()

    async def lose():
        async with gate.transaction(table=table, writer="async younger") as txn:
            await txn.touch("day=3", "*", "merge")
            computing.set()
            await asyncio.Event().wait()

    async with gate.transaction(table=table, writer="async older") as txn:
        younger = asyncio.create_task(lose())
        await computing.wait()
        await txn.touch("day=3", "*", "merge")
        await asyncio.wait([younger])
        async with txn.commit() as grant:
            grant.version = "2"
    return [younger.exception().writer, younger.exception().other_writers]


report = {"found": [name for name in ("pandas", "pyarrow", "pypaimon", "pyspark") if importlib.util.find_spec(name)]}
report["missing"] = []
for name in spark_jobs.__all__:
    try:
        getattr(spark_jobs, name)
    except ImportError as missing:
        report["missing"].append(str(missing))
with CommitGate(brokers, topic_prefix=prefix, admission_timeout_seconds=120.0) as gate:
    with gate.transaction(table=table, writer="plain", batch_id=1) as txn:
        txn.touch("day=1", "*", "merge")
        with txn.commit() as grant:
            grant.check()
            grant.version = "1"
    try:
        with gate.transaction(table=table, writer="plain", batch_id=1):
            pass
    except AlreadyCommitted as known:
        report["version"] = known.version
    try:
        with gate.transaction(table=table, writer="older") as older:
            older.touch("day=2", "*", "merge")
            with gate.transaction(table=table, writer="younger") as younger:
                younger.touch("day=2", "*", "merge")
                with younger.commit():
                    pass
    except CommitAborted as lost:
        report["lost"], report["others"] = lost.writer, lost.other_writers
    report["async lost"] = asyncio.run(conflict(AsyncGate(gate)))
    try:
        gate.foreach_batch(print, writer="plain", table=table)
    except UnsupportedSpark as refused:
        report["refused"] = str(refused)
print(json.dumps(report))
"""


def test_a_transaction_a_conflict_and_a_replay_with_the_base_package_alone(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    python = plain_environment(tmp_path / "plain")
    with running_agent(kafka, topic_prefix, tmp_path):
        arguments = [kafka.bootstrap_servers, topic_prefix, str(tmp_path / "trips")]
        done = subprocess.run(
            [python, "-I", "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
        )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["found"] == []
    assert report["missing"] == ["HudiSink needs fastavro, which is not installed: install lakewarden[hudi]"]
    assert report["version"] == "1"
    assert (report["lost"], report["others"]) == ("younger", ["older"])
    assert report["async lost"] == ["async younger", ["async older"]]
    assert "install lakewarden[spark]" in report["refused"]
