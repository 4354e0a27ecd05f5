"""`make bench`: measures the performance targets, prints tables, and writes the figures as JSON with the machine's load.

`--quick` is a smoke run: the same code with small sizes, whose figures mean nothing. No duration is asserted: the targets are
printed beside the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import aiokafka
import pydantic

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from tests.bench import (
    failover,
    in_memory,
    latency,
    steps,
    volume,
)
from tests.bench.peers import compare, paimon_commits
from tests.bench.run import QUICK, Figures, Part, Rows, Run, Size, progress
from tests.servers.s3 import running_s3_server

DEFAULT_JSON = Path("build/bench.json")
ROUNDS = ("repeated", "failed")
"""What a part is called that fails in its first round, and in the second one, which follows then."""
PEERS = (*compare.WAYS, "paimon")


PARTS = {
    "latency": Part(latency.measure, latency.rows),
    "volume": Part(volume.measure, volume.rows),
    "ledger": Part(volume.measure_ledger, volume.ledger_rows),
    "failover": Part(failover.measure, failover.rows, failover.FOOTNOTE),
    "check": Part(in_memory.measure, in_memory.rows, broker=False),
    "steps": Part(steps.measure, steps.rows, broker=False),
}
"""By name: what `--only` selects, and the key of its figures in the report."""


def _measure(
    size: Size, parts: Sequence[str], bootstrap_servers: str | None, measured: Mapping[str, Part] = PARTS
) -> Figures:
    """Measure these parts. One that fails, as on a machine with a slow moment, is measured once more; `repeated` has its error.

    What the others have measured is kept if it fails again; then `failed` has the error.
    """
    report: Figures = {}
    chosen = [part for part in measured if part in parts]
    broker = any(measured[part].broker for part in chosen)
    with _place(bootstrap_servers, broker=broker) as run:
        for part, outcome in ((part, each) for part in chosen for each in ROUNDS):
            if outcome == "failed" and part not in report.get("repeated", {}):
                continue
            progress(part)
            mine = run(size).within(f"{part}-{outcome}")
            mine.folder.mkdir()
            try:
                report[part] = measured[part].measure(mine)
            except Exception as error:  # noqa: BLE001 - the figures of the other parts are kept
                report.setdefault(outcome, {})[part] = repr(error)
                traceback.print_exc()
                progress(f"{part} is {outcome}")
    return report


def _measure_peers(size: Size, options: argparse.Namespace) -> Figures:
    report: Figures = {}
    formats = options.peers
    with (
        _place(options.bootstrap_servers) as place,
        running_s3_server() if {"hudi", "paimon"} & set(formats) else contextlib.nullcontext() as server,
        patch.dict(os.environ, {} if server is None else server.environment),
    ):
        run = place(size)
        workloads = {
            table_format: [
                each
                for each in (size.hudi_peers if table_format == "hudi" else size.peers)
                if each.name in options.workload and (table_format == "iceberg" or not each.rest)
            ]
            for table_format in formats
            if table_format != "paimon"
        }
        report["peers"] = compare.measure(
            run, workloads, ways=options.ways, repeat=options.repeat, server=server
        )
        if "paimon" in formats:
            assert server is not None, "the tables of Paimon are on a store"
            report["paimon"] = paimon_commits.measure(run, server)
    return report


@contextlib.contextmanager
def _place(bootstrap_servers: str | None, *, broker: bool = True) -> Iterator[Callable[[Size], Run]]:
    """A broker and a folder, which is removed."""
    with tempfile.TemporaryDirectory(prefix="lakewarden-bench-") as name, contextlib.ExitStack() as stack:
        if bootstrap_servers is None and broker:
            kafka = EmbeddedKafka(Path(name) / "kafka", on_progress=progress)
            bootstrap_servers = stack.enter_context(kafka).bootstrap_servers
        prefix = f"bench-{uuid.uuid4().hex[:8]}"
        yield lambda size: Run(size, bootstrap_servers or "", prefix, Path(name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)

    def several(name: str, choices: Sequence[str], what: str, **more: object) -> None:
        parser.add_argument(name, nargs="+", choices=choices, help=f"{what}: {', '.join(choices)}", **more)  # type: ignore[arg-type]

    parser.add_argument(
        "--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help=f"default: {DEFAULT_JSON}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of some seconds, whose figures mean nothing"
    )
    several(
        "--only", tuple(PARTS), "the parts to measure; default: all", metavar="PART", default=tuple(PARTS)
    )
    several(
        "--peers",
        PEERS,
        "measure only these formats' own ways and the gate, side by side",
        metavar="FORMAT",
        default=(),
    )
    workloads = [each.name for each in Size().peers]
    what = "with --peers, for formats other than Paimon, only these"
    several("--workload", workloads, what, metavar="NAME", default=workloads)
    ways = sorted({way for each in compare.WAYS.values() for way in each})
    several("--ways", ways, "with --peers, likewise", metavar="WAY", default=())
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="with --peers, likewise: run each way so often"
    )
    parser.add_argument("--bootstrap-servers", help="a broker to use; default: an embedded one for this run")
    return parser.parse_args()


def main() -> None:
    """Measure, print the tables, write the JSON."""
    options = _options()
    began = time.monotonic()
    report: Figures = {"quick": options.quick, "machine": _machine()}
    size = QUICK if options.quick else Size()
    if options.peers:
        report |= _measure_peers(size, options)
    else:
        report |= _measure(size, options.only, options.bootstrap_servers)
    report["machine"]["load_after"] = _load()
    report["took_seconds"] = round(time.monotonic() - began, 1)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    for part, error in report.get("repeated", {}).items():
        print(f"\n{part} was measured twice, the first round failed: {error}")
    print(f"\nwritten to {options.json}")
    if failed := report.get("failed"):
        sys.exit(f"not measured, the error is above: {', '.join(failed)}")


def _machine() -> Figures:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "aiokafka": aiokafka.__version__,
        "pydantic": pydantic.VERSION,
        "load_before": _load(),
    }


def _load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _print(report: Figures) -> None:
    machine = report["machine"]
    print(
        f"\n{machine['cores']} cores, Python {machine['python']}, aiokafka {machine['aiokafka']}, "
        f"load {machine['load_before']} before and {machine['load_after']} after, took {report['took_seconds']} s"
        + (", --quick: the figures mean nothing" if report["quick"] else "")
    )
    measured = {name: part for name, part in PARTS.items() if name in report}
    if measured:
        rows = [row for name, part in measured.items() for row in part.rows(report[name])]
        _print_table([("", "measured", "target"), *rows], *(part.footnote for part in measured.values()))
    if report.get("peers"):
        _print_table(compare.rows(report["peers"]))
        _print_table(compare.wall_rows(report["peers"]), compare.FOOTNOTE)
        _print_table(compare.batch_rows(report["peers"]), compare.PHASES_FOOTNOTE)
    if "paimon" in report:
        _print_table(paimon_commits.rows(report["paimon"]), paimon_commits.FOOTNOTE)


def _print_table(rows: Rows, *footnotes: str) -> None:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if len(table) > 1:
        print()
        for row in table:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for footnote in filter(None, footnotes):
        print(footnote)


if __name__ == "__main__":
    main()
