"""Writers of one table as a process: the client library as a driver uses it, each writer a thread.

    python -m tests.real.committing_writers --bootstrap H:P --prefix P --table URI --writers N --seed N --evidence FILE

Each commits batch after batch: intent, markers, request, publish, completed; what was aborted is tried again. A publish is a row
of steps, each behind a `grant.check()`, so that it stops where the grant does. Evidence, one JSON object a line, its times on
CLOCK_MONOTONIC (`t`) and on the wall (`wall_ms`):

- `publishing`: the publish has begun,
- `published` and `stopped`: it has ended; `t` is the last moment at which a check allowed it to go on,
- `abort`: the moment in which an abort was heard, and its `reason`,
- `ended`: how the attempt ended.

Commands on stdin, a line each: `long` makes the next publish go on until it is stopped; `finish` ends the writers after their
batches.
"""

from __future__ import annotations

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
"""Small, so that where a lease is lost a slow machine's writer hears of it before it stops by itself."""
STEP_SECONDS: Final = 0.01
GROUPS: Final = 6
"""File groups that the writers share: few, so that they do conflict."""
LONGEST_SECONDS: Final = 120.0
"""Of a `long` publish that nobody stops."""


class Writers:
    """All writers of this process, and what they say."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._lock: str | None = given.lock
        self._evidence = given.evidence.open("a", buffering=1)
        self._write_lock = threading.Lock()
        self._long = threading.Event()
        self._finish = threading.Event()

    def run(self) -> None:
        """Commit until told to finish."""
        threading.Thread(target=self._read_commands, daemon=True).start()
        given = self._given
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
        self._finish.set()  # whoever started us has gone

    def _write(self, gate: CommitGate, writer: str) -> None:
        chance = random.Random(f"{self._given.seed}-{writer}")
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
        with gate.transaction(table=self._given.table, writer=writer, batch_id=batch, lock=self._lock) as txn:
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
            grant.check()
            last = began = _moment()
            self._write_evidence("publishing", writer, began, **about)
            while last[0] < began[0] + seconds:
                time.sleep(STEP_SECONDS)
                grant.check()
                last = _moment()
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
        said = {
            "what": what,
            "t": t,
            "wall_ms": wall_ms,
            "table": self._given.table,
            "writer": writer,
            **fields,
        }
        with self._write_lock:
            self._evidence.write(json.dumps(said) + "\n")


def _moment() -> tuple[float, int]:
    return time.monotonic(), time.time_ns() // 1_000_000


def main() -> None:
    """Write until told to finish."""
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
