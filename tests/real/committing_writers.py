"""A process with several writers of one table. Each is a thread that uses the product's client library as a driver does.

    python -m tests.real.committing_writers --bootstrap H:P --prefix P --table URI --writers N --seed N --evidence FILE

Each writer commits batch after batch: intent, markers, request, publish, completed. It retries an aborted batch. A publish
consists of many steps, each after a `grant.check()`, so that it stops with its grant. Evidence lines are JSON objects with
times on CLOCK_MONOTONIC (`t`) and as epoch milliseconds (`wall_ms`):

| `what` | meaning |
| --- | --- |
| `publishing` | the publish has begun |
| `published`, `stopped` | the publish has ended; its times are those of the last check that allowed it to continue |
| `abort` | the writer received an abort, with its `reason` |
| `ended` | how the attempt ended |

Commands on stdin, one per line: `long` extends the next publish until it is stopped. `finish` ends the writers after their
current batches.
"""

import argparse
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AlreadyCommitted, CommitAborted, GateError, LeaseLost
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.gate.observer import GateEvent

HEARTBEAT_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 0.2
"""Small, so that after a loss of the lease a writer on a slow machine receives the abort before it stops by itself."""
STEP_SECONDS: Final = 0.01
GROUPS: Final = 6
"""File groups that the writers share. There are few, so that conflicts occur."""
LONGEST_SECONDS: Final = 120.0
"""The length of a `long` publish that is not stopped."""


class Writers:
    """All writers of this process and their evidence."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._options = given
        self._lock: str | None = given.lock
        self._evidence = given.evidence.open("a", buffering=1)
        self._write_lock = threading.Lock()
        self._long = threading.Event()
        self._finish = threading.Event()

    def run(self) -> None:
        """Commit until `finish` is read."""
        threading.Thread(target=self._read_commands, daemon=True).start()
        given = self._options
        with CommitGate(
            given.bootstrap,
            topic_prefix=given.prefix,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            margin_seconds=MARGIN_SECONDS,
            observer=self._on_gate_event,
        ) as gate:
            names = [f"{given.table.rsplit('/', 1)[1]}-{number}" for number in range(given.writers)]
            threads = [threading.Thread(target=self._write, args=(gate, name)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _read_commands(self) -> None:
        for line in sys.stdin:
            {"long": self._long, "finish": self._finish}[line.strip()].set()
        self._finish.set()  # stdin is closed: the parent process has ended

    def _write(self, gate: CommitGate, writer: str) -> None:
        chance = random.Random(f"{self._options.seed}-{writer}")
        batch = 0
        while not self._finish.is_set():
            try:
                outcome = self._attempt(gate, writer, batch, chance)
            except AlreadyCommitted:
                outcome = "already-committed"
            except GateError as error:
                outcome = type(error).__name__
                time.sleep(chance.uniform(0.02, 0.2))
            self._write_evidence("ended", writer, outcome=outcome, batch=batch)
            batch += outcome in ("committed", "already-committed")

    def _attempt(self, gate: CommitGate, writer: str, batch: int, chance: random.Random) -> str:
        with gate.transaction(
            table=self._options.table, writer=writer, batch_id=batch, lock=self._lock
        ) as txn:
            txn.touch("p", str(chance.randrange(GROUPS)), "merge")
            time.sleep(chance.uniform(0.05, 0.5))
            with txn.commit() as grant:
                seconds = chance.uniform(0.02, 0.6)
                if self._long.is_set():
                    self._long.clear()
                    seconds = LONGEST_SECONDS
                return self._publish(grant, writer, txn.id, seconds)
        raise AssertionError("unreachable")

    def _publish(self, grant: Grant, writer: str, transaction: str, seconds: float) -> str:
        about = {"transaction": transaction, "token": grant.token, "long": seconds == LONGEST_SECONDS}
        last: tuple[float, int] | None = None
        try:
            began = _moment()
            grant.check()
            last = began
            self._write_evidence("publishing", writer, began, **about)
            while last[0] < began[0] + seconds:
                time.sleep(STEP_SECONDS)
                # The time is taken before the check: on a busy machine this thread may be suspended right after it.
                now = _moment()
                grant.check()
                last = now
        except (LeaseLost, CommitAborted):
            grant.not_published()
            if last is not None:
                self._write_evidence("stopped", writer, last, **about)
            raise
        self._write_evidence("published", writer, last, **about)
        return "committed"

    def _on_gate_event(self, event: GateEvent) -> None:
        if event.what == "abort":
            self._write_evidence(
                "abort", event.writer, transaction=event.transaction, reason=event.detail["reason"]
            )

    def _write_evidence(
        self, what: str, writer: str, at: tuple[float, int] | None = None, **fields: Any
    ) -> None:
        t, wall_ms = at or _moment()
        line = {
            "what": what,
            "t": t,
            "wall_ms": wall_ms,
            "table": self._options.table,
            "writer": writer,
            **fields,
        }
        with self._write_lock:
            self._evidence.write(json.dumps(line) + "\n")


def _moment() -> tuple[float, int]:
    return time.monotonic(), time.time_ns() // 1_000_000


def main() -> None:
    """Run the writers."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "table"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--lock")
    parser.add_argument("--writers", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    Writers(parser.parse_args()).run()


if __name__ == "__main__":
    main()
