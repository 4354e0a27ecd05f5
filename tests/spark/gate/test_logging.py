"""What a driver prints: nothing, until its program configures logging; then lines under `lakewarden.*`."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.bound_child import bound
from lakewarden.agent.embedded.kafka import EmbeddedKafka
from lakewarden.events import DecisionEventUnion, WriterEventUnion
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.observer import GateEvent, Step, notify, reason_of
from tests.kafka_fixture import KafkaServer
from tests.spark.fake_agent import aborted, grant_everything
from tests.spark.harness import Harness

DRIVER = """
import logging
import sys
import time

from lakewarden.spark_jobs import AgentUnreachable, CommitAborted, CommitGate

brokers, prefix, configured = sys.argv[1:]
if configured == "True":
    logging.basicConfig(level=logging.INFO)
gate = CommitGate(brokers, topic_prefix=prefix, heartbeat_seconds=0.2)

with gate.transaction(table="/lake/flights", writer="committing") as txn, txn.commit() as grant:
    grant.version = "1"

try:
    with gate.transaction(table="/lake/flights", writer="losing") as txn:
        txn.touch("p=1", "*", "merge")
        while True:
            txn.check()
            time.sleep(0.01)
except CommitAborted:
    pass

try:
    with gate.transaction(table="/lake/flights", writer="cut-off") as txn:
        txn.touch("p=2", "*", "merge")
        gate._channel.timeout = 4.0
        while True:
            txn.touch("p=2", "*", "merge")
            time.sleep(0.1)
except AgentUnreachable:
    pass
"""


def abort_the_loser(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
    if event.type == "marker-created" and event.writer == "losing":
        return [aborted(event, *event.markers)]
    return grant_everything(event, offset)


def run_drivers(broker: EmbeddedKafka, prefix: str, configured: list[bool]) -> list[tuple[str, str]]:
    """Run drivers that commit, are aborted, and lose Kafka. Returns the stdout and stderr of each."""
    drivers: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        agents = []
        for each in configured:
            own = f"{prefix}-{each}"
            harness = stack.enter_context(Harness(KafkaServer(broker.bootstrap_servers, "its own"), own))
            agents.append(harness.agent(abort_the_loser))
            command = [sys.executable, "-c", DRIVER, broker.bootstrap_servers, own, str(each)]
            driver = subprocess.Popen(
                bound(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(driver.kill)
            drivers.append(driver)
        for agent in agents:
            agent.wait_for_events(
                lambda event: event.writer == "cut-off" and event.type == "marker-created",
                "a marker of the writer that is going to lose Kafka",
            )
        os.kill(broker.pid or 0, signal.SIGSTOP)
        try:
            printed = [driver.communicate(timeout=120) for driver in drivers]
        finally:
            os.kill(broker.pid or 0, signal.SIGCONT)
    assert [driver.returncode for driver in drivers] == [0] * len(drivers), printed
    return printed


def test_a_line_has_the_event_and_its_fields_as_text_and_on_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields: dict[str, Any] = {
        "table": "s3://lake/flights",
        "batch_id": None,
        "others": ["a:1"],
        "late": False,
        "error": "no route\nto host",
    }
    with caplog.at_level(logging.INFO, "lakewarden.gate"):
        EventLogger("lakewarden.gate").info("gate.abort", **fields)

    (record,) = caplog.records
    assert record.getMessage() == (
        'gate.abort table=s3://lake/flights batch_id=null others=["a:1"] late=false error="no route\\nto host"'
    )
    assert (vars(record)["event"], vars(record)["fields"]) == ("gate.abort", fields)
    assert record.funcName == "test_a_line_has_the_event_and_its_fields_as_text_and_on_the_record"


JVM_ERROR = (
    "An error occurred while calling o63.sql.\n: java.io.IOException: disk full\n\tat Code.run(Code.java:7)\n"
)


ON_TWO_DAYS = [["day=1", "*"]] * 2 + [["day=2", "f"]]
SENTENCES: tuple[tuple[Step, dict[str, Any], str | None], ...] = (
    ("granted", {"token": 4, "lease_seconds": 20.0}, None),
    ("queued", {"ahead": (f"crm:{uuid.UUID(int=1)}",), "waited_seconds": 12.3}, "waits for crm, 12 s so far"),
    (
        "abort",
        {"reason": "conflict", "others": ["crm"], "conflicts": ON_TWO_DAYS},
        "lost to crm on day=1 *, day=2 f",
    ),
    ("abort", {"reason": "superseded", "others": [], "conflicts": []}, "aborted (superseded)"),
    ("completed", {"version": "12"}, "committed to lake/orders, version 12"),
    ("abandoned", {"reason": reason_of(None, touched=False)}, "empty: nothing to write"),
    (
        "abandoned",
        {"reason": reason_of(RuntimeError(JVM_ERROR), touched=True)},
        "not committed: RuntimeError: java.io.IOException: disk full",
    ),
    ("failed", {"outcome": "unknown", "error": "no\nanswer"}, "failed, outcome unknown: no answer"),
)


@pytest.mark.parametrize(("what", "detail", "sentence"), SENTENCES)
def test_a_step_is_one_sentence_at_info_and_has_its_fields_at_debug(
    caplog: pytest.LogCaptureFixture, what: Step, detail: dict[str, Any], sentence: str | None
) -> None:
    event = GateEvent(0.0, what, "s3://data/lake/orders", f"shop:{uuid.UUID(int=7)}", "t", 7, 2, detail)
    with caplog.at_level(logging.INFO, "lakewarden.gate"):
        notify(None, event)
    level = "ERROR" if what == "failed" else "INFO"
    lines = [] if sentence is None else [f"{level} gate.{what} shop batch 7, attempt 2: {sentence}"]
    assert [f"{each.levelname} {each.getMessage()}" for each in caplog.records] == lines
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "lakewarden.gate"):
        notify(None, event)
    [record] = caplog.records
    assert f"table=s3://data/lake/orders writer=shop:{uuid.UUID(int=7)} transaction=t" in record.getMessage()
    assert vars(record)["fields"].items() >= detail.items()


@pytest.mark.real
def test_a_driver_prints_nothing_until_it_configures_logging(topic_prefix: str, tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        silent, (stdout, stderr) = run_drivers(broker, topic_prefix, [False, True])

    assert silent == ("", "")
    assert stdout == ""
    lines = re.findall(r"^(\w+):(lakewarden\.\w+):(\S+) (?:table=\S+ writer=)?([\w-]+)", stderr, re.MULTILINE)
    steps = set(lines)
    assert {
        ("INFO", "lakewarden.gate", "gate.completed", "committing"),
        ("INFO", "lakewarden.gate", "gate.abort", "losing"),
        ("WARNING", "lakewarden.gate", "gate.heartbeat-failed", "cut-off"),
        ("WARNING", "lakewarden.gate", "gate.abandoned-not-published", "cut-off"),
    } <= steps
