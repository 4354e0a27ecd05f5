"""`DeltaSink` on Spark Connect: the log of a table, and a statement whose commit waits for the grant, by stored procedures.

The procedures (`sinks/connect/java`) read, stage and commit. What follows from what they answer is decided in `log.py` and
`statement.py`, as in the driver.

One statement is three calls side by side:

| thread | call | |
| --- | --- | --- |
| the batch's, under its tag | `run` | computes, waits before the commit, commits; an abort interrupts it |
| `_accompany` | `prepared`, `hold` | waits for the actions, publishes the markers, and holds the statement while the gate waits |
| `_before_commit`, then `_accompany` | `allow` | after the grant: lets the commit begin |

**A statement may outlive its writer, and never commits then.** It isn't held any more, so it ends `HOLD_SECONDS` after the last
call, and refuses its commit if it computed for longer.

**The lease.** `allow` names a time of the server's clock. An answer that was received at `t` was written before `t`. So the
server's clock shows at least the answer's time `c` then. The lease, which ends `s` seconds after `t`, has not ended while that
clock shows less than `c + s`. Neither a call that travels slowly nor a suspended writer prolongs it.

**Unknown.** From the moment at which `allow` is sent, only an answer of the server, or the log, says what became of the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.errors import LeaseLost, UnsupportedSpark
from lakewarden.spark_jobs.gate.grant import PublishOutcome, monotonic_seconds
from lakewarden.spark_jobs.sinks.connect.procedures import RECIPE, Procedures, StatementFailed, as_facts
from lakewarden.spark_jobs.sinks.delta.fence import LOG_STORE, SCHEMES, setting_of
from lakewarden.spark_jobs.sinks.delta.log import CommitFile, Metadata, TableLog, commit_files
from lakewarden.spark_jobs.sinks.delta.statement import CONFLICT, GrantedStatement, Write, transaction_label
from lakewarden.spark_jobs.sinks.releases import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

HOLD_SECONDS = 20.0
"""How long a statement waits for a sign of its writer: about a lease."""

LOOK_SECONDS = 2.0
"""Longest wait of one call for the statement: each one holds it."""

END_SECONDS = 60.0
"""For the end of a commit that was allowed, and of a statement that was refused. After it, its outcome is looked up."""

REFUSED = "IllegalStateException: lakewarden: "
"""The start of the text by which Java ends a statement that may not commit."""


class ServerLog(TableLog):
    """The log of a table that a server of Spark Connect reads."""

    def __init__(self, spark: SparkSession, location: str, *, untried: bool) -> None:
        """Raise `UnsupportedSpark` if the server doesn't have the procedures, or another Delta."""
        self.call = Procedures(spark, "delta")
        self._session = spark
        self._location = location
        self._path_known = ""
        self.known: Metadata | None = None
        self._text = ""
        release = self.call.release
        version = release["delta"][0]
        DELTA.require(version, spark.version, untried=untried)
        differing = DELTA.differing(release["method"])
        if differing:
            raise UnsupportedSpark(
                f"Delta Lake {version} has another observer of transactions ({', '.join(differing)} differ), so its commit can't "
                f"be put under the grant; {RECIPE}"
            )

    @property
    def java(self) -> None:
        """None is reachable."""

    @property
    def is_current(self) -> bool:
        return True

    @property
    def jvm_zone(self) -> str:
        return self.call.release["zone"][0]

    @property
    def data_path(self) -> str:
        return self._path_known or self._table()["path"][0]

    def gap(self) -> str | None:
        """Return why S3 wouldn't refuse a commit whose version is taken. None if it would, or if the table isn't on S3."""
        scheme = self.data_path.partition(":")[0].lower()
        if scheme not in SCHEMES or self._session.conf.get(setting_of(scheme), None):
            return None
        return (
            f"the server has no log store that puts if absent: start it with {setting_of(scheme)}={LOG_STORE}"
        )

    def newest(self) -> int:
        return int(self._table()["snapshot"][0])

    def _summary(self) -> dict[str, int]:
        """Return the last batch of each writer."""
        found = (row.partition("\t") for row in self.call("writers", self._location))
        return {writer: int(batch) for batch, _, writer in found}

    def summed_up(self, writer: str) -> int | None:
        return self._summary().get(writer)

    def writers(self) -> list[str]:
        return list(self._summary())

    def metadata(self) -> Metadata:
        return self._known_as(self._table()["metadata"][0])

    def _table(self) -> dict[str, list[str]]:
        found = as_facts(self.call("table", self._location))
        if not found:
            raise ValueError(f"no Delta table: create it before the query starts; table={self._location}")
        self._path_known = found["path"][0]
        return found

    def commits(self, since: int) -> list[CommitFile]:
        return _commit_files(self.call("commits", self._location, since))

    def actions(self, version: int, kinds: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        starts = "\t".join(f'{{"{kind}"' for kind in kinds)
        for line in self.call("actions", self._location, version, starts):
            yield from json.loads(line).items()

    def delete(self, files: Iterable[str]) -> None:
        self.call("delete", self._location, "\t".join(files))

    def _millis(self, moment: str) -> int:
        return int(self.call("millis", moment)[0])


def _commit_files(rows: Iterable[str]) -> list[CommitFile]:
    named = (row.split("\t") for row in rows)
    return commit_files((name, length, modified) for name, modified, length in named)


class ServerStatement(GrantedStatement):
    """One statement on a server of Spark Connect."""

    def __init__(
        self,
        txn: Transaction,
        table: ServerLog,
        prepared: Callable[[Iterator[dict[str, Any]]], object] = lambda _: None,
    ) -> None:
        super().__init__(txn, table, prepared)
        self._call = table.call
        self._threads = ThreadPoolExecutor(3, thread_name_prefix=f"lakewarden-{txn.id}")
        self._facts_then: dict[str, list[str]] = {}
        """What `prepared` answered."""
        self._clock = (0, 0.0)
        """The server's milliseconds, and this process's seconds when the answer that has them was received."""
        self._error: Exception | None = None
        self._allowed = False
        """Whether `allow` was sent."""
        self._over = False
        """Whether the statement has ended, so its commit must not be allowed any more."""

    @property
    def base_version(self) -> int | None:
        return int(self._facts_then["base"][0]) if self._facts_then.get("base") else None

    @property
    def _delta_id(self) -> str:
        return self._facts_then["delta"][0]

    @property
    def _first_error(self) -> BaseException | None:
        return self._error

    def _actions(self) -> Iterator[dict[str, Any]]:
        yield from map(json.loads, self._facts_then.get("action", ()))

    def _is_conflict(self, error: Exception) -> bool:
        return isinstance(error, StatementFailed) and any(kind.endswith(CONFLICT) for kind in error.kinds)

    def execute(self, write: Write, target: str) -> None:
        if write.kind == "sql":
            self._run("sql", target, write.sql)
            return
        with engine_of(write.rows).as_view(write.rows, f"lakewarden_{self._txn.id}") as view:
            self._run(write.kind, target, view)

    def _run(self, kind: str, target: str, text: str) -> None:
        """Execute `text`: SQL, or the name of the view whose rows are written."""
        txn = self._txn
        batch = -1 if txn.batch_id is None else txn.batch_id
        about = (txn.id, self._table.data_path, txn.writer, batch, transaction_label(txn))
        beside = self._threads.submit(self._accompany)
        error: Exception | None = None
        try:
            answer = as_facts(self._call("run", *about, kind, target, text, int(HOLD_SECONDS * 1000)))
        except Exception as raised:  # noqa: BLE001 - Spark's, of the statement or of the connection
            error = raised
            answer = self._ended()
        except BaseException:  # the query was stopped: no `except Exception` of the batch may catch that
            self._over = True
            self._threads.submit(self._call, "refuse", txn.id)
            raise
        self._settle(answer, error, beside)

    # beside the statement

    def _accompany(self) -> None:
        """Wait for what the statement wants to commit, ask for the grant, and let it commit."""
        try:
            facts = self._await_prepared()
            if facts["state"] != ["prepared"]:
                return
            self._facts_then = facts
            self._base = _commit_files(facts["file"])
            self._require_layout(facts["before"][0])
            self._publish_markers(facts["metadata"][0])
            asked = self._threads.submit(self._before_commit)
            while not asked.done():
                self._ask("hold", self._txn.id)
                wait([asked], HOLD_SECONDS / 4)
            asked.result()
            self._allow()
        except Exception as error:  # noqa: BLE001 - whatever it is, the statement must not commit
            self._error = error
            with suppress(Exception):
                self._call("refuse", self._txn.id)

    def _await_prepared(self) -> dict[str, list[str]]:
        while True:
            facts = self._ask("prepared", self._txn.id, int(LOOK_SECONDS * 1000))
            if facts["state"] not in (["computing"], ["unknown"]) or self._over:
                return facts
            self._txn.check()

    def _ask(self, procedure: str, *arguments: str | int) -> dict[str, list[str]]:
        """Call, and set the clock by the answer."""
        facts = as_facts(self._call(procedure, *arguments))
        if facts.get("clock"):
            self._clock = (int(facts["clock"][0]), monotonic_seconds())
        return facts

    def _before_commit(self) -> None:
        super()._before_commit()
        if self._over and self.grant is not None:
            self.grant.not_published()

    def _allow(self) -> None:
        assert self.grant is not None, "`_before_commit` has requested it"
        clock, received = self._clock
        deadline = monotonic_seconds() + self.grant.seconds_left()
        if self._over:
            return
        self._allowed = True
        until = clock + int((deadline - received) * 1000)
        facts = self._ask("allow", self._txn.id, until, int(END_SECONDS * 1000))
        if facts["committed"] != [""]:
            self._report(self.grant, facts["committed"][0])

    # how it ended

    def _ended(self) -> dict[str, list[str]]:
        """Return what is known of a statement whose call raised, when it has ended. Nothing, if the server doesn't answer."""

        def ask() -> dict[str, list[str]]:
            self._call("refuse", self._txn.id)
            return as_facts(self._call("ended", self._txn.id, int(END_SECONDS * 1000)))

        with suppress(Exception):
            # A thread of its own has no tag, so an abort doesn't interrupt it.
            return self._threads.submit(ask).result()
        return {}

    def _settle(self, answer: dict[str, list[str]], error: Exception | None, beside: Future[None]) -> None:
        """Return if the commit is in the table, else raise."""
        self._over = True
        wait([beside], END_SECONDS if self._allowed else 0)
        self._threads.shutdown(wait=False)
        self._facts_then = self._facts_then or answer
        version = answer.get("committed", [""])[0]
        begun, ended = (answer.get(name) == ["true"] for name in ("begun", "ended"))
        text = answer.get("text", [""])[0]
        if text and (error is None or begun):
            error = StatementFailed(text, answer["class"])
        grant = self.grant
        if grant is not None and grant.outcome is PublishOutcome.UNKNOWN:
            if version:
                self._report(grant, version)
            elif not self._allowed or (ended and not begun):
                grant.not_published()
        if error is None:
            self._settle_returned()
            return
        if REFUSED in text and not begun and self._error is None:
            raise LeaseLost(
                f"the server of Spark Connect refused the commit: {text}; nothing was published; begin a new transaction with "
                f"the same data; {self._facts()}"
            ) from error
        self._settle_failed(error)
