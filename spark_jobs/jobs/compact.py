"""Compacts one Paimon table beside its writers: data files and manifests, by Java Paimon, committed under the agent's grant.

    python -m lakewarden.spark_jobs.jobs.compact --bootstrap-servers kafka:9092 --table s3://lake/air.db/flights --every 60

It runs in the driver alone. With `--every` it prints a line when Spark has started and the rounds begin. Then it prints one for
each commit. `sinks/paimon/compaction.py` says how a round works, and how it gives way to writers. A round that fails is
reported in one line on stderr; the next one follows after `--every` seconds.

SIGTERM and SIGINT end the round at its next step, without a commit, and the exit code is 0. With `--once` the exit code is 1
if the round failed, or lost to a writer. Exit code 2 is a usage error.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from lakewarden.events import canonical_table
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.engine.java import gateway_of, java_exception, java_text
from lakewarden.spark_jobs.jobs.options import add_kafka, add_master, log_warnings_to_stderr, setting
from lakewarden.spark_jobs.jobs.spark_session import reason, spark_session
from lakewarden.spark_jobs.sinks.paimon.compaction import PaimonCompactor, Stopped
from lakewarden.spark_jobs.sinks.paimon.java_table import packages


def run(compactor: PaimonCompactor, stop: threading.Event, *, once: bool, every: float) -> int:
    """Run one round, or rounds until `stop` is set. Return the exit code."""
    if not once:
        print(f"{compactor.table} ready: a round every {every:g} s", flush=True)  # noqa: T201 - the program's output
    while True:
        done = _run_round(compactor)
        if stop.is_set():
            return 0
        if once:
            return 0 if done else 1
        if stop.wait(every):
            return 0


def _run_round(compactor: PaimonCompactor) -> bool:
    try:
        for commit in compactor.run_round():
            print(f"{compactor.table} {commit}", flush=True)  # noqa: T201 - likewise
    except Stopped:
        return False
    except Exception as error:  # noqa: BLE001 - the service survives whatever ends a round
        why = java_text(error) if java_exception(error) is not None else reason(error)
        print(f"compaction of {compactor.table} failed: {why}", file=sys.stderr, flush=True)  # noqa: T201 - likewise
        return False
    return compactor.lost == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Compact the table once, or until a signal."""
    options = _parser().parse_args(argv)
    log_warnings_to_stderr()
    stop = threading.Event()
    compactors: list[PaimonCompactor] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        # In a thread: the one that the signal interrupts may hold the locks of the transaction.
        for each in compactors:
            threading.Thread(target=each.stop, daemon=True).start()

    try:
        spark = spark_session(
            "lakewarden-compact",
            master=options.master,
            packages=packages(options.table),
            **dict(options.conf),
        )
        # The session's start sets a handler of its own.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        with CommitGate(
            options.bootstrap_servers, topic_prefix=options.topic_prefix, kafka=options.kafka_options or None
        ) as gate:
            compactor = PaimonCompactor(
                gateway_of(spark),
                gate,
                options.table,
                writer=options.writer,
                full=options.full,
                catalog_options=dict(options.catalog_option),
            )
            compactors.append(compactor)
            return run(compactor, stop, once=options.once, every=options.every)
    except Exception as error:  # noqa: BLE001 - of every error the operator gets one line and an exit code
        print(f"the compaction failed: {reason(error)}", file=sys.stderr)  # noqa: T201 - likewise
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.jobs.compact", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--table", required=True, type=_table, help="URI or absolute path of the Paimon table"
    )
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="run one round, then exit")
    often.add_argument(
        "--every",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="wait between two rounds; default: %(default)s",
    )
    parser.add_argument(
        "--full", action="store_true", help="compact every bucket fully, instead of where files have piled up"
    )
    parser.add_argument(
        "--writer",
        default="compactor",
        help="its name, one for each compactor of a table; default: %(default)s",
    )
    parser.add_argument(
        "--catalog-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=setting,
        help="an option of the table's store, as PaimonSink has it in catalog_options; repeatable",
    )
    add_kafka(parser, "what CommitGate takes as `kafka`")
    add_master(parser)
    return parser


def _table(text: str) -> str:
    try:
        return canonical_table(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not greater than 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
