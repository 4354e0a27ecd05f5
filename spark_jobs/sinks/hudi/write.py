"""One write of Hudi in one transaction of the gate: its sections, its markers, its outcome, its rollback.

Hudi takes its table lock several times in a write, and calls `LakewardenLockProvider` (`java/`) before and after each section.
That calls `answer` here, in the thread that writes:

| event | what happens here |
| --- | --- |
| `enter` | if an abort has arrived, the section is refused: Hudi's waits start no Spark job that could be cancelled |
| `leave` of `startCommit` | the instant is on the timeline, requested under the lock (from Hudi 1.1 on) |
| `commit` | the markers are read a last time and published; the transaction waits for its grant |
| `locked` | the user's own lock is acquired too, under the grant |
| `committed` | the lock is released; if the instant is completed on the timeline, the commit is reported at once |

Rules:

1. *Own instant.* Files of the timeline name no writer. The instant is the one for which a client of this transaction has a
   heartbeat (`LakewardenClients`). If there is none, the commit is refused. A thread looks for it, and for its markers. It is
   announced at once, so that a watcher of the table (docs/watch.md) doesn't report this write as that of another writer.
2. *Markers* come from the inflight file, which names file groups that get updates, and from the marker files, which name all
   (`handlers/hudi`). All of them are published before the grant is requested.
3. *Two locks.* If the table's other writers use Hudi's storage-based lock, its object is the agent's lock, and the grant is that
   lock. With any other provider, the user's lock is acquired after the grant, never before it.
4. *The lease bounds the commit.* While Hudi commits, a thread passes on the seconds that are left of the lease. When they have
   passed, the class in the JVM interrupts the commit, also while Python is suspended, but not while Hudi writes a file of the
   timeline under a temporary name: it would publish an empty one. The timeline then shows what Hudi had done.
5. *Outcome.* Not published: the commit section never began, or Hudi found a conflict, which it does before it publishes.
   Published: the completed instant is on the timeline. Anything else is unknown, and the gate looks the batch up.
6. *Rollback.* A transaction that ended without a commit rolls its instant back by Hudi's own client, outside of the batch's job
   tag, in `ROLLBACK_SECONDS`. Otherwise its heartbeat would count as alive for two minutes. If the rollback doesn't end in
   time, it goes on in the background, and Hudi's cleaning of failed writes does what is left.
7. *Older instants first.* Hudi takes the files of a pending instant for committed if it is older than the first completed one
   (decision 36). The write waits until there is none, before it reads, and again before it commits, its own instant counted
   as completed. What Hudi takes for dead is rolled back during the wait.
8. *The instant is still there.* A restore to a savepoint rolls pending instants back, and a table that was dropped and created
   again has other ones. Hudi itself would complete the instant. So the write looks for it under the grant.
9. *Late instants.* A store may carry out the commit of a dead driver after its batch was looked up. So the batch is looked up
   again when the lock of the commit is acquired. A completed instant has no condition: one that comes even later is logged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakewarden.events import Marker
from lakewarden.handlers.hudi.timeline import UnreadableHudi, taken_for_committed
from lakewarden.handlers.maker import Winner
from lakewarden.spark_jobs.gate.errors import (
    CommitAborted,
    GateError,
    UnsupportedSpark,
    base_changed,
    committed_meanwhile,
    conflict_found,
)
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.options import transaction_options
from lakewarden.spark_jobs.sinks.hudi.provider import HudiClient, Provider, is_before_1

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

MARKER_SECONDS = 0.2
"""Between two looks at the inflight file and the marker files."""

LEASE_SECONDS = 0.2
"""Between two reports of the lease to the JVM."""

OLDER_SECONDS = 1.0
"""Between two looks at older instants, while they hold the write back."""

OLDER_TIMEOUT_SECONDS = 600.0
"""The longest wait for older instants. That of a killed driver is dead for Hudi after two minutes."""

ROLLBACK_SECONDS = 60.0
"""A rollback needs seconds, and Hudi's table lock."""

CONFLICT = "HoodieWriteConflictException"
"""Hudi's class for a commit that overlaps another one. It is raised before anything is published."""

ROLLBACK = "HoodieRollbackException"
"""Hudi's class for a rollback that failed. Under LAZY, a write rolls others back after its own commit only."""

log = EventLogger("lakewarden.hudi")


class HudiWrite:
    """The state of one write. Hudi calls it in the thread of `save()`."""

    def __init__(
        self,
        spark: SparkSession,
        files: HudiFiles,
        txn: Transaction,
        options: Mapping[str, str],
        *,
        path: str,
        lock_is_the_agents: bool,
    ) -> None:
        """`options`: of the sink. `path`: of the table, as Spark has it."""
        self._files = files
        self._txn = txn
        self._user_options = dict(options)
        self._lock_is_the_agents = lock_is_the_agents
        self._provider = Provider(spark)
        self._before_1 = is_before_1(self._provider.release)
        self._client = HudiClient(spark, path, options, before_1=self._before_1)
        self.instant: str | None = None
        """The instant of this write, once Hudi has requested it and it was seen."""
        self._seeing = threading.Lock()
        self._grant: Grant | None = None
        self._locked = False
        self._asked = False
        self._ended = False
        self._known_files: dict[str, int] = {}
        self._planned = False
        self._published: set[tuple[str, str]] = set()
        self._markers = _Repeated("lakewarden-markers", self._publish_markers, MARKER_SECONDS)
        self._lease = _Repeated("lakewarden-lease", self._report_lease, LEASE_SECONDS)

    def options(self) -> dict[str, str]:
        txn = self._txn
        entry = {"writer": txn.writer, "batch": txn.batch_id, "transaction": txn.id}
        return transaction_options(self._user_options, txn.id, json.dumps(entry))

    def begin(self, answer: Any) -> None:
        """Let Hudi's sections be answered by `answer`, which wraps the method of this name."""
        self._require_supported()
        self._await_older_instants()
        self._provider.register(self._txn.id, _Function(answer))
        self._markers.start()

    def _require_supported(self) -> None:
        release = self._provider.release
        layout = 1 if self._before_1 else 2
        if self._files.layout() not in (None, layout):
            raise UnreadableHudi(
                f"Hudi {release} writes tables with layout {layout}, and this one has the other: Hudi 0.15 writes version 6, "
                f"Hudi 1.x 8 and 9; use that release, or upgrade the table with Hudi's procedure; table={self._txn.table}"
            )
        if self._before_1 and self._lock_is_the_agents:
            raise UnsupportedSpark(
                f"Hudi {release} has no storage-based lock: set hoodie.write.lock.provider to the one of the table's other "
                f"writers; table={self._txn.table}"
            )

    def end(self) -> None:
        """Answer no more."""
        self._markers.stop()
        self._lease.stop()
        self._provider.unregister(self._txn.id)

    # the sections, called by the JVM

    def answer(self, event: str, section: str) -> str:
        """Answer an event of a section; raise to refuse it."""
        match event:
            case "enter":
                self._asked = True
                self._txn.check()
            case "leave":
                if section.endswith(".startCommit"):
                    self._see_instant()
            case "commit":
                return self._begin_commit()
            case "locked":
                self._require_new()
                self._locked = True
            case "committed":
                self._end_commit()
            case _:
                raise RuntimeError(f"an unknown event of the lock provider: {event}; {self._facts()}")
        return ""

    def _begin_commit(self) -> str:
        if self._ended or not self._see_instant():
            raise RuntimeError(f"Hudi commits a second time, or without an instant; refused; {self._facts()}")
        if self._grant is None:
            self._await_older_instants()
            self._markers.stop()
            self._publish_markers()
            self._grant = self._txn.request_grant()
        try:
            self._report_lease()
            self._require_pending()
        except Exception:
            self._grant.not_published()
            raise
        self._lease.start()
        if self._lock_is_the_agents:
            self._locked = True
            return "held"
        return "granted"

    def _require_pending(self) -> None:
        """Raise `BaseChanged` if the timeline doesn't have the instant any more (rule 8)."""
        assert self.instant is not None, "a commit has an instant"
        if self._files.instant(self.instant) is None:
            raise base_changed(
                "the instant of this batch is no longer on the timeline: the table was restored to a savepoint, or was dropped "
                "and created again",
                self._facts(),
            )

    def _require_new(self) -> None:
        """Raise `BaseChanged` if the timeline has the batch: the user's lock may have come long after the grant (rule 9)."""
        txn = self._txn
        if txn.batch_id is not None and self._files.committed(txn.writer, txn.batch_id) is not None:
            raise committed_meanwhile(self._facts())

    def _end_commit(self) -> None:
        self._ended = True
        self._lease.stop()
        assert self._grant is not None, "the commit section begins with a grant"
        if self.instant is not None and self._files.is_committed(self.instant):
            self._grant.published(self.instant)
            self._report_repeated(self.instant)

    def _report_repeated(self, instant: str) -> None:
        """Log it if another instant of this writer has the batch, too (rule 9). The commit is done, whatever fails here."""
        txn, others = self._txn, list[str]()
        with suppress(Exception):
            others = self._files.repeated(txn.writer, txn.batch_id, instant)
        if others:
            detail = "a late commit of an earlier process came during this one: delete the rows of one, by _hoodie_commit_time"
            log.error("hudi.batch-twice", **self._names(), batch=txn.batch_id, others=others, detail=detail)

    def _report_lease(self) -> None:
        """Pass the seconds that the commit may still take to the JVM. If there are none, end it, and raise."""
        assert self._grant is not None, "only a commit has a lease"
        try:
            left = self._grant.seconds_left()
        except Exception:
            self._provider.allow(self._txn.id, 0.0)
            raise
        self._provider.allow(self._txn.id, left)

    # the instant and its markers

    def _see_instant(self) -> bool:
        """Whether this write's instant is known. Look for it, and announce it, if it isn't (rule 1)."""
        with self._seeing:
            if self.instant is None:
                pending = [
                    each.time for each in self._files.instants() if each.writes and each.state != "completed"
                ]
                own = next(
                    (time for time in reversed(pending) if self._provider.owns(self._txn.id, time)), None
                )
                if own is not None:
                    self._txn.announce_instant(own)
                    self.instant = own
            return self.instant is not None

    def _publish_markers(self) -> None:
        """Publish what the files of the instant say that it touches, each file group once."""
        if not self._see_instant():
            return
        assert self.instant is not None, "it was seen"
        found: list[Marker] = []
        if not self._planned:
            planned = self._files.planned(self.instant)
            self._planned = planned is not None
            found += planned or []
        found += self._files.markers(self.instant, self._known_files)
        new = [each for each in found if (each.partition, each.file_group) not in self._published]
        if new:
            self._txn.touch_all(new)
            self._published.update((each.partition, each.file_group) for each in new)

    def _await_older_instants(self) -> None:
        """Wait until no pending instant is taken for committed, this write's own counted as completed (rule 7)."""
        deadline = time.monotonic() + OLDER_TIMEOUT_SECONDS
        waits = False
        self._txn.check()
        while older := taken_for_committed(self._files.instants(), self.instant):
            times = [each.time for each in older]
            if time.monotonic() > deadline:
                raise GateError(
                    f"the table has no commit before the pending instant {times[0]}, whose files Hudi would take for committed; "
                    f"nothing was published; wait until its writer has committed, or roll it back, then restart; {self._facts()}"
                )
            if not waits:
                waits = True
                log.warning(
                    "hudi.waits-for-older-instants",
                    **self._names(),
                    instants=times,
                    detail="they are pending, and the table has no commit before them: Hudi would take their files for "
                    "committed; those of a killed driver are rolled back when Hudi takes it for dead",
                )
            try:
                self._client.roll_back_dead()
            except Exception as error:  # noqa: BLE001 - the same is tried again
                log.warning("hudi.rollback-failed", **self._names(), error=_first_line(error))
            self._txn.pause(OLDER_SECONDS, "end of older instants")

    # the outcome

    def settle(self, error: BaseException) -> bool:
        """After a write that raised: report what is known of its commit (rule 5). Return whether it is done nevertheless."""
        grant = self._grant
        if grant is not None and grant.outcome is PublishOutcome.PUBLISHED and ROLLBACK in str(error):
            # Before 1.2, its cleaning executes the rollback that another writer is about to end.
            log.warning("hudi.rollback-failed", **self._names(), error=_first_line(error))
            return True
        if grant is None or grant.outcome is not PublishOutcome.UNKNOWN:
            return False
        if not self._locked:
            grant.not_published()
        elif CONFLICT in str(error):
            raise conflict_found(_first_line(error), self._facts(), self._winner()) from error
        return False

    def _winner(self) -> Winner | None:
        assert self.instant is not None, "a write that began to commit has an instant"
        try:
            return self._files.winner(self.instant, self._published)
        except Exception:  # noqa: BLE001 - only the error's text lacks it
            return None

    def require_grant(self) -> None:
        """After a write that returned: raise if Hudi committed without asking, or wrote without this transaction's options."""
        if not self._asked and self.instant is None:
            raise RuntimeError(
                "no write to Hudi took place with the options of this transaction, so what was written had no grant; "
                f"write with the options or in the session that you gave; {self._facts()}"
            )
        if self._grant is None and self.instant is not None and self._files.is_committed(self.instant):
            raise RuntimeError(
                f"Hudi committed without the grant: this release isn't known well enough, don't use it; {self._facts()}"
            )

    # removing what was staged

    def roll_back(self) -> None:
        """Remove the instant and its files (rule 6)."""
        instant = self._files.instant(self.instant) if self.instant is not None else None
        if instant is None or instant.state == "completed":
            return
        # A plain thread has no job tag. It ends by itself, unless the store or another writer's lock hangs.
        thread = threading.Thread(target=self._roll_back, args=(instant.time,), daemon=True)
        thread.start()
        thread.join(ROLLBACK_SECONDS)
        if thread.is_alive():
            log.warning(
                "hudi.rollback-late",
                **self._names(),
                seconds=ROLLBACK_SECONDS,
                detail="the rollback continues in the background; if it fails, Hudi's cleaning of failed writes does it",
            )

    def _roll_back(self, instant: str) -> None:
        try:
            done = self._client.roll_back(instant)
            self._files.remove_heartbeat(instant)
            log.info("hudi.rolled-back", **self._names(), done=done)
        except Exception as error:  # noqa: BLE001 - the table is right without it; Hudi cleans up later
            log.warning("hudi.rollback-failed", **self._names(), error=_first_line(error))

    def _names(self) -> dict[str, Any]:
        txn = self._txn
        return {"table": txn.table, "writer": txn.writer, "transaction": txn.id, "instant": self.instant}

    def _facts(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._names().items())


class _Function:
    """A `java.util.function.BiFunction`."""

    def __init__(self, function: Any) -> None:
        self.apply = function

    class Java:
        implements = ("java.util.function.BiFunction",)


class _Repeated:
    """Calls a function again and again in a thread, until the transaction is aborted or it is stopped.

    After an error, it is called again: a store or the JVM may answer the next time. Of errors in a row, the first is logged.
    """

    def __init__(self, name: str, function: Any, seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopped.is_set():
            self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the call that is under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failed = False
        while not self._stopped.wait(self._seconds):
            try:
                self._function()
                failed = False
            except CommitAborted:
                return  # the write's own thread raises it
            except Exception as error:  # noqa: BLE001 - the same is done again before the commit, and raises there
                if not failed:
                    log.warning("hudi.not-read", thread=self._thread.name, error=repr(error))
                failed = True


def _first_line(error: BaseException) -> str:
    """The line of an error that names its cause: of an error of the JVM, the first one that follows py4j's own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if CONFLICT in line), lines[1] if len(lines) > 1 else repr(error))[
        :500
    ]
