"""One process that commits to a Paimon table on S3 by pypaimon, without Spark, a row a commit. Prints its figures as JSON.

    shipped        pypaimon's own commit
    lock           the same, while the process holds a lock that all writers of this machine share: what a perfect lock can do
    put-if-absent  the fenced publish of `PaimonSink`, without a grant
    gate           the fenced publish under a grant

With `--pause-at N` the process stops itself (SIGSTOP) in its commit N, right before the snapshot is written: its parent wakes it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from lakewarden.handlers.paimon.publish import CommitName
from lakewarden.spark_jobs import CommitGate, GateError
from lakewarden.spark_jobs.sinks.paimon.commit import FencedCommit, publish
from lakewarden.spark_jobs.sinks.paimon.table import address
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema

MAX_ATTEMPTS = 20
"""Of one commit through the gate."""


def catalog_options(endpoint: str) -> dict[str, str]:
    """Return pypaimon's options for an S3 server, with the credentials of AWS's variables."""
    return {
        "s3.endpoint": endpoint,
        "s3.path-style-access": "true",
        "s3.region": os.environ.get("AWS_REGION", "us-east-1"),
        "s3.access-key": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }


def main() -> None:
    """Commit, and print how long each commit took and which failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.paimon_writer", description=__doc__)
    parser.add_argument("way", choices=("shipped", "lock", "put-if-absent", "gate"))
    parser.add_argument("table")
    parser.add_argument("number", type=int)
    parser.add_argument("--commits", type=int, required=True)
    parser.add_argument("--lock-file", type=Path, required=True)
    parser.add_argument("--pause-at", type=int)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic-prefix", required=True)
    options = parser.parse_args()
    with CommitGate(options.bootstrap_servers, topic_prefix=options.topic_prefix) as gate:
        writer = _Writer(options, gate)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(writer.commit_all()), flush=True)


class _Writer:
    def __init__(self, options: argparse.Namespace, gate: CommitGate) -> None:
        self._options = options
        self._gate = gate
        self._name = f"writer-{options.number}"
        self._address = address(options.table, catalog_options(os.environ["AWS_ENDPOINT_URL"]))
        self._table = self._address.open()

    def commit_all(self) -> dict[str, Any]:
        seconds: list[float] = []
        failed = 0
        for number in range(self._options.commits):
            began = time.monotonic()
            try:
                self._commit(number)
            except Exception as error:  # noqa: BLE001 - pypaimon raises RuntimeError and others
                failed += 1
                print(f"commit {number} failed: {error!r}", file=sys.stderr)
            else:
                seconds.append(time.monotonic() - began)
        return {"seconds": seconds, "failed": failed}

    def _commit(self, number: int) -> None:
        if self._options.way == "gate":
            self._commit_by_gate(number)
            return
        messages = self._stage(number)
        if self._options.way == "put-if-absent":
            name = CommitName(self._name, number, f"{self._name}-{number}")
            with self._pausing(number):
                publish(self._table, messages, name=name, token=0, check=lambda: None)
        elif self._options.way == "lock":
            with self._options.lock_file.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._commit_as_shipped(messages, number)
        else:
            self._commit_as_shipped(messages, number)

    def _commit_by_gate(self, number: int) -> None:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                with self._gate.transaction(
                    table=self._address.uri,
                    writer=self._name,
                    batch_id=number,
                    attempt=attempt,
                    conflict_rule="deleted-file",
                ) as txn:
                    messages = self._stage(number)
                    name = CommitName(self._name, number, txn.id)
                    with txn.commit() as grant, self._pausing(number):
                        publish(self._table, messages, name=name, token=grant.token, check=grant.check)
                return
            except GateError as error:
                if not error.retriable or attempt == MAX_ATTEMPTS:
                    raise

    def _stage(self, number: int) -> list[Any]:
        write = self._builder().new_write()
        row = [{"writer": self._options.number, "number": number}]
        write.write_arrow(pa.Table.from_pylist(row, arrow_schema(self._table)))
        messages: list[Any] = write.prepare_commit(number)
        write.close()
        return messages

    def _commit_as_shipped(self, messages: list[Any], number: int) -> None:
        committer = self._builder().new_commit()
        snapshots = committer.file_store_commit.snapshot_commit
        before = snapshots.commit

        def paused(*arguments: Any) -> Any:
            self._pause(number)
            return before(*arguments)

        snapshots.commit = paused
        committer.commit(messages, number)
        committer.close()

    def _builder(self) -> Any:
        builder = self._table.new_stream_write_builder()
        builder.commit_user = self._name
        return builder

    @contextmanager
    def _pausing(self, number: int) -> Iterator[None]:
        """Pause before the put of the fenced publish in the block, and after the check of its grant."""
        before = FencedCommit._answer

        def paused(commit: FencedCommit, state: Any, snapshot: Any) -> Any:
            self._pause(number)
            return before(commit, state, snapshot)

        with patch.object(FencedCommit, "_answer", paused):
            yield

    def _pause(self, number: int) -> None:
        if number == self._options.pause_at:
            self._options.pause_at = None
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main()
