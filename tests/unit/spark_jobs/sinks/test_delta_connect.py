"""What `ServerStatement` makes of the answers of a server, and of those that never arrive. The server is a model of the Java."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs import BaseChanged, LeaseLost, OutcomeUnknown
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.sinks.delta import connect
from lakewarden.spark_jobs.sinks.delta.connect import ServerStatement
from lakewarden.spark_jobs.sinks.delta.log import CommitFile
from lakewarden.spark_jobs.sinks.delta.statement import Write

AHEAD_MS = 1_000_000
"""The server's clock shows other numbers than the writer's."""

CONFLICT = "org.apache.spark.sql.delta.DeltaConcurrentModificationException"


class Lost(Exception):
    """The connection ended: neither the call nor its answer may have arrived."""


class Server:
    """A statement that wants to commit at once. `DeltaStatement.java` has its states."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.state = "computing"
        self.begun = False
        self.version = ""
        self.failure: tuple[str, list[str]] | None = None
        self.calls: list[str] = []
        self.until = 0
        self.refusal = "the writer refused"
        self.commit: Callable[[], None] = lambda: None
        """What Delta does after the allowance."""
        self.lost: set[str] = set()
        """Calls whose answer never arrives."""
        self.no_commit = False

    def clock(self) -> int:
        return AHEAD_MS + int(time.monotonic() * 1000)

    def become(self, state: str) -> None:
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def __call__(self, procedure: str, *arguments: Any) -> list[str]:
        self.calls.append(procedure)
        answer: list[str] = getattr(self, f"_{procedure}")(*arguments)
        if procedure in self.lost:
            raise Lost(procedure)
        return answer

    def _run(self, *_: Any) -> list[str]:
        with self.changed:
            if not self.no_commit:
                self.become("prepared")
                self.changed.wait_for(lambda: self.state in ("allowed", "refused"), 5)
                self._commit()
            self.become("committed" if self.version else "ended")
            return self._facts()

    def _commit(self) -> None:
        if self.state != "allowed" or self.clock() >= self.until:
            self.failure = (f"IllegalStateException: lakewarden: {self.refusal}", [])
            return
        self.begun = True
        try:
            self.commit()
            self.version = "8"
        except Conflict as error:
            self.failure = (f"ConcurrentAppendException: {error}", [CONFLICT])

    def _prepared(self, _id: str, _ms: int) -> list[str]:
        with self.changed:
            self.changed.wait_for(lambda: self.state != "computing", 5)
            return [*self._facts(), "before\t{}", "metadata\t{}", "file\t00000000000000000007.json\t1\t100"]

    def _hold(self, _id: str) -> list[str]:
        return [f"clock\t{self.clock()}"]

    def _allow(self, _id: str, until: int, _ms: int) -> list[str]:
        with self.changed:
            assert self.state == "prepared"
            self.until = until
            self.become("allowed")
            self.changed.wait_for(lambda: self.state in ("committed", "ended"), 5)
            return self._facts()

    def _refuse(self, _id: str) -> list[str]:
        with self.changed:
            if self.state in ("computing", "prepared"):
                self.become("refused")
            return self._facts()

    def _ended(self, _id: str, _ms: int) -> list[str]:
        with self.changed:
            self.changed.wait_for(lambda: self.state in ("committed", "ended"), 5)
            return self._facts()

    def _facts(self) -> list[str]:
        text, kinds = self.failure or ("", [])
        ended = str(self.state in ("committed", "ended")).lower()
        return [
            f"state\t{self.state}",
            f"clock\t{self.clock()}",
            f"ended\t{ended}",
            f"begun\t{str(self.begun).lower()}",
            f"committed\t{self.version}",
            "base\t7",
            "delta\tdelta-1",
            *([f"text\t{text}"] if text else []),
            *(f"class\t{kind}" for kind in kinds),
            "action\t" + json.dumps({"add": {"path": "a.parquet"}}),
        ]


class Conflict(Exception):
    """Delta's."""


class World:
    def __init__(self, *, left: float = 20.0, committed: int | None = None) -> None:
        self.server = Server()
        self.left = left
        self.reports: list[str | None] = []
        self.committed = committed
        self.grant = Grant(
            "g",
            1,
            check=lambda: self.left,
            completed=lambda grant: self.reports.append(grant.version),
            failed=self._unknown,
        )
        self.request: Callable[[], Grant] = lambda: self.grant
        txn: Any = SimpleNamespace(
            id="t1",
            table="/t",
            writer="w",
            batch_id=7,
            check=lambda: None,
            request_grant=lambda: self.request(),  # noqa: PLW0108 - a test replaces it
        )
        log: Any = SimpleNamespace(
            call=self.server,
            data_path="file:/t",
            known=None,
            commits=lambda since: [CommitFile(since, 1, 100)],
            version_of=lambda _id, _since: self.committed,
            winner=lambda *_: None,
        )
        self.statement = ServerStatement(txn, log)

    @staticmethod
    def _unknown(_grant: Grant, error: Exception) -> bool:
        raise OutcomeUnknown(str(error), retriable=True)

    def execute(self) -> None:
        rows: Any = None
        self.statement.execute(Write("sql", rows, "MERGE …"), "delta.`/t`")


def test_a_statement_commits_after_its_grant_and_is_reported_by_its_version() -> None:
    world = World()

    world.execute()

    assert world.reports == ["8"]
    assert world.statement.staged_files == ["a.parquet"]


def test_the_allowance_ends_with_the_lease_whatever_the_two_clocks_show() -> None:
    """Also if the grant was awaited for longer than an answer is fresh."""
    world = World(left=5.0)
    before = world.server.clock()

    world.execute()

    assert before + 4_000 <= world.server.until <= world.server.clock() + 5_000


def test_an_allowance_that_arrives_after_the_lease_commits_nothing() -> None:
    world = World(left=-1.0)
    world.server.refusal = "the lease ended before its commit began"

    with pytest.raises(LeaseLost, match="the lease ended before its commit began"):
        world.execute()

    assert world.grant.outcome is PublishOutcome.NOT_PUBLISHED
    assert world.reports == []


def test_a_refused_grant_refuses_the_commit() -> None:
    world = World()

    def refused() -> Grant:
        raise BaseChanged("aborted")

    world.request = refused

    with pytest.raises(BaseChanged, match="aborted"):
        world.execute()

    assert not world.server.begun
    assert "allow" not in world.server.calls


def test_the_statement_is_held_while_the_gate_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "HOLD_SECONDS", 0.04)
    world = World()

    def granted() -> Grant:
        time.sleep(0.2)
        return world.grant

    world.request = granted

    world.execute()

    assert world.server.calls.count("hold") > 3


@pytest.mark.parametrize("call", ["run", "allow"])
def test_a_commit_whose_answer_is_lost_is_published(call: str) -> None:
    """Each of the two calls has the answer of the other."""
    world = World()
    world.server.lost = {call}

    world.execute()

    assert world.reports == ["8"]


@pytest.mark.parametrize(("committed", "reports"), [(9, ["9"]), (None, [])])
def test_if_all_answers_after_the_allowance_are_lost_the_log_decides(
    committed: int | None, reports: list[str]
) -> None:
    world = World(committed=committed)
    world.server.lost = {"run", "allow", "ended", "refuse"}

    if committed is None:
        with pytest.raises(OutcomeUnknown):
            world.execute()
    else:
        world.execute()

    assert world.reports == reports


@pytest.mark.parametrize("call", ["prepared", "hold"])
def test_a_writer_that_loses_its_server_before_the_allowance_has_published_nothing(call: str) -> None:
    world = World()
    world.server.lost = {call}

    def granted() -> Grant:
        time.sleep(0.1)
        return world.grant

    world.request = granted

    with pytest.raises(Lost):
        world.execute()

    assert not world.server.begun
    assert world.grant.outcome is not PublishOutcome.PUBLISHED
    assert "allow" not in world.server.calls


def test_a_conflict_of_delta_is_a_changed_base() -> None:
    world = World()

    def conflict() -> None:
        raise Conflict("files were added to day=1")

    world.server.commit = conflict

    with pytest.raises(BaseChanged, match="files were added to day=1"):
        world.execute()

    assert world.grant.outcome is PublishOutcome.NOT_PUBLISHED


def test_a_conflict_of_the_commit_with_itself_is_a_published_commit() -> None:
    world = World(committed=8)

    def conflict() -> None:
        raise Conflict("files were added to day=1")

    world.server.commit = conflict

    world.execute()

    assert world.reports == ["8"]


def test_a_statement_with_nothing_to_commit_asks_for_no_grant() -> None:
    world = World()
    world.server.no_commit = True

    world.execute()

    assert world.reports == []
    assert world.statement.grant is None
