"""docker-compose.yml as a user runs it: up, a writer on this machine, a crash of the agent, down and up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
import yaml

from lakewarden.spark_jobs import AlreadyCommitted, CommitGate
from tests.containers import ROOT
from tests.containers.compose_project import ComposeProject
from tests.waiting import wait_until

pytestmark = [pytest.mark.containers]

TABLE = "s3://lake/air.db/flights"
STATUS = ("lakewarden", "status", "--output", "json")
RESTART_SECONDS = 120
SHOWN_SECONDS = 120


@pytest.fixture
def gate(project: ComposeProject) -> Iterator[CommitGate]:
    """A gate on this machine, as a Spark driver would have it; it waits through a restart of the agent."""
    with CommitGate(project.bootstrap_servers, admission_timeout_seconds=120.0) as gate:
        yield gate


def test_every_service_is_healthy_and_the_bucket_was_created(project: ComposeProject) -> None:
    containers = project.containers()

    healthy = {
        name: each["State"]["Health"]["Status"] for name, each in containers.items() if name != "bucket"
    }
    assert healthy == dict.fromkeys(("kafka", "s3", "agent", "web", "prometheus"), "healthy")
    assert containers["bucket"]["State"]["ExitCode"] == 0


def test_a_writer_on_this_machine_commits_and_status_and_explain_show_it(
    project: ComposeProject, gate: CommitGate
) -> None:
    with gate.transaction(table=TABLE, writer="departures", batch_id=1) as txn:
        txn.touch("month=1/day=1", "*", "merge")
        [open_table] = json.loads(project.compose("exec", "-T", "agent", *STATUS))
        with txn.commit() as grant:
            grant.version = "1"
    project.compose("exec", "-T", "agent", "lakewarden", "status")
    explanation = project.compose("exec", "-T", "agent", "lakewarden", "explain", txn.id)
    wait_until(lambda: shown_tables(project) == [TABLE], SHOWN_SECONDS)

    assert open_table["table"] == TABLE
    assert [each["writer"] for each in open_table["transactions"]] == ["departures"]
    assert "departures" in explanation


def test_prometheus_scrapes_the_agent_with_the_projects_rules(project: ComposeProject) -> None:
    def answer(path: str) -> Any:
        return fetched(project.prometheus_port, f"/api/v1/{path}")["data"]

    wait_until(
        lambda: [each["value"][1] for each in answer("query?query=lakewarden_ready")["result"]] == ["1"],
        SHOWN_SECONDS,
    )
    rules = [rule for group in answer("rules")["groups"] for rule in group["rules"]]
    named = yaml.safe_load((ROOT / "deploy/prometheus/lakewarden.rules.yml").read_text())["groups"]

    assert sorted(each["name"] for each in rules) == sorted(
        each["alert"] for group in named for each in group["rules"]
    )
    assert {each["health"] for each in rules} <= {"ok", "unknown"}, "unknown: not evaluated yet"


def test_an_agent_without_kafka_is_unhealthy_until_kafka_answers_and_keeps_running(
    project: ComposeProject,
) -> None:
    """Docker asks the agent itself: its process runs all the time. The page goes on, too."""

    def health() -> str:
        return str(project.containers()["agent"]["State"]["Health"]["Status"])

    before = project.containers()["agent"]["RestartCount"]
    project.compose("pause", "kafka")
    try:
        wait_until(lambda: health() == "unhealthy", RESTART_SECONDS)
        [*_, last] = project.containers()["agent"]["State"]["Health"]["Log"]
        page = project.containers()["web"]["State"]["Health"]["Status"]
    finally:
        project.compose("unpause", "kafka")
    wait_until(lambda: health() == "healthy", RESTART_SECONDS)

    assert last["Output"].startswith("not ready\n")
    assert page == "healthy"
    assert project.containers()["agent"]["RestartCount"] == before


def test_the_s3_server_honours_conditions_for_a_client_on_this_machine(project: ComposeProject) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lakewarden.agent", "lock", "probe", "s3://lake"],
        env={**os.environ, **project.s3_environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_agent_killed_under_a_grant_is_restarted_and_recovers_the_commit_from_the_log(
    project: ComposeProject, gate: CommitGate
) -> None:
    """The writer publishes under its lease and completes its commit while no agent runs."""
    before = project.containers()["agent"]["RestartCount"]
    with gate.transaction(table=TABLE, writer="departures", batch_id=2) as first:
        first.touch("month=1/day=2", "*", "merge")
        with first.commit() as grant:
            project.kill_agent()
            grant.check()
            grant.version = "2"
    wait_until(lambda: project.containers()["agent"]["RestartCount"] > before, RESTART_SECONDS)

    with gate.transaction(table=TABLE, writer="arrivals", batch_id=1) as second:
        second.touch("month=1/day=2", "*", "merge")
        with second.commit() as later:
            later.version = "3"
    with (
        pytest.raises(AlreadyCommitted, match="batch 2"),
        gate.transaction(table=TABLE, writer="departures", batch_id=2),
    ):
        pytest.fail("a committed batch was admitted again")
    assert later.token > grant.token


def test_down_and_up_keep_what_was_committed(project: ComposeProject, gate: CommitGate) -> None:
    with gate.transaction(table=TABLE, writer="weather", batch_id=7) as txn, txn.commit() as grant:
        grant.version = "4"
    gate.close()

    project.down()
    project.up()

    with CommitGate(project.bootstrap_servers, admission_timeout_seconds=120.0) as again:
        with (
            pytest.raises(AlreadyCommitted, match="batch 7"),
            again.transaction(table=TABLE, writer="weather", batch_id=7),
        ):
            pytest.fail("a committed batch was admitted again")
        with again.transaction(table=TABLE, writer="weather", batch_id=8) as next_txn, next_txn.commit():
            pass


def shown_tables(project: ComposeProject) -> list[str]:
    return [each["table"] for each in fetched(project.web_port, "/tables.json")["tables"]]


def fetched(port: int, path: str) -> Any:
    """The JSON that a server on this machine answers."""
    connection = HTTPConnection("localhost", port, timeout=30)
    try:
        connection.request("GET", path)
        return json.load(connection.getresponse())
    finally:
        connection.close()
