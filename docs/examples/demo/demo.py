"""Two jobs write the same flights to one table, first with optimistic admission, then with auto. No row is lost.

    make demo                                   # python docs/examples/demo/demo.py
    make demo FORMAT=delta ARGS="--days 20"     # delta, iceberg, hudi

`lakewarden dev` (Kafka, the agent and its page) and both jobs are processes, as you would run them. What they do is read from the
page, printed, and drawn. At the end each table is compared with the flights, row by row. It needs a JDK 17 or newer, no Docker.

- `departures.py`, `arrivals.py`: the two jobs. `without_gate.py`: the same without lakewarden.
- `lake.py`: the tables in four formats. `flights.py`: the two feeds.
- `contest.py`, `compare.py`, `picture.py`: what is found, printed and drawn.

Exit codes: 0 every row is present exactly once and correct, or a run without an agent has ended; 1 a row is missing or wrong, or
the run failed; 2 usage error; 130 interrupted.
"""
# ruff: noqa: INP001, T201 - a script, whose output is read

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from compare import compare
from contest import Contest, TimeLine, report
from flights import FEEDS, expected_table, load_flights, write_feeds
from lake import FORMATS, Lake
from picture import draw
from pyarrow.parquet import read_table

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[3]
READY_SECONDS = 900.0
"""Limit for a program to be ready: half a minute, and longer when it downloads Kafka or jars, or on a busy machine."""
COMPACTION_SECONDS = 300.0
"""Limit for a compactor's first commit after the jobs have ended. On a busy machine a round takes a minute."""
STOP_SECONDS = 18.0
"""Limit for an orderly end: the agent releases its locks and stops Kafka."""
MAX_RESTARTS = 3
"""Of a job: the cause of repeated failures persists after another restart."""
MOST_BATCH_DAYS = 6
"""Days of flights in a batch. Its computation then takes some seconds, long enough to be worth stopping."""


class Failed(Exception):
    """The run can't go on. The message says why."""


class Program:
    """A running program, in a process group of its own, with its output in files."""

    def __init__(self, name: str, arguments: list[str], logs: Path) -> None:
        self.name, self._out, self._log = name, logs / f"{name}.out", logs / f"{name}.log"
        # Settings of lakewarden may configure another agent of the user's.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LAKEWARDEN_")}
        kept |= {key: os.environ[key] for key in ("LAKEWARDEN_CACHE_DIR",) if key in os.environ}
        with self._out.open("ab") as out, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**kept, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def lines(self, begin: str) -> list[str]:
        """What it has printed that begins so."""
        return [line for line in self._out.read_text().splitlines() if line.startswith(begin)]

    def wait_for(self, begin: str, seconds: float = READY_SECONDS) -> str:
        """The first line that begins so."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended = self.code is not None
            if lines := self.lines(begin):
                return lines[0]
            if ended:
                raise Failed(f"{self.name} has ended: {self.last_line()}")
            time.sleep(0.1)
        raise Failed(f"{self.name} did nothing for {seconds:.0f} s: {self.last_line()}")

    def last_line(self) -> str:
        """The last line of its log that names an error, or else the last one."""
        lines = [line.strip()[:300] for line in self._log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Conflict)\w*: ", line)]
        return (errors or list(filter(None, lines)) or ["the log is empty"])[-1]

    def end(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, then SIGKILL to what is left of it and of what it has started."""
        if self.code is not None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Demo:
    """One run, and its programs."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._lake = Lake(str(folder), options.format, options.primary_key)
        self._place = ""
        self._batch_days = max(1, min(MOST_BATCH_DAYS, options.days // 10))
        self._programs: list[Program] = []
        (folder / "logs").mkdir()

    def run(self) -> list[Contest]:
        """Start all programs, let both jobs write each table, and compare the tables."""
        flights = load_flights(self._options.days)
        write_feeds(flights, self._folder / "feeds", self._batch_days)
        print(f"two feeds with {flights.num_rows:,} flights of {self._options.days} days")
        if self._options.format == "iceberg":
            self._start_catalog()
        self._place = str(self._lake.save())
        contests: list[str | None] = [None] if self._options.without_agent else ["optimistic", "auto"]
        tables = [f"flights_{each or 'alone'}" for each in contests]
        keyed = ", with a primary key" if self._options.primary_key else ""
        uris = " and ".join(map(self._lake.uri, tables))
        print(f"{self._options.format}, partitioned by month and day{keyed}: {uris}", flush=True)
        self._run(str(HERE / "lake.py"), self._place, "create", *tables)
        agent = None if self._options.without_agent else self._start_agent()
        ran = [self._contest(*each, agent) for each in zip(contests, tables, strict=True)]
        print("comparing each table with the flights", flush=True)
        self._run(str(HERE / "lake.py"), self._place, "export", *tables)
        checks = [compare(read_table(self._lake.copy(each)), expected_table(flights)) for each in tables]
        return [
            Contest(name, check, *found) for name, check, found in zip(contests, checks, ran, strict=True)
        ]

    def stop(self) -> None:
        """End all programs; the agent and the catalog last. A second Ctrl-C leaves none of them running."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for each in reversed(self._programs):
            each.end()

    def _start(self, name: str, *arguments: str) -> Program:
        program = Program(name, list(arguments), self._folder / "logs")
        self._programs.append(program)
        return program

    def _run(self, *arguments: str) -> None:
        """Run a program to its end."""
        program = self._start(arguments[2], *arguments)
        while program.code is None:
            time.sleep(0.1)
        if program.code != 0:
            raise Failed(f"{program.name} failed: {program.last_line()}")

    def _start_agent(self) -> dict[str, str]:
        print("starting Kafka and the agent (lakewarden dev)", flush=True)
        dev = self._start(
            "dev", "-m", "lakewarden.agent", "dev", "--output", "json", "--data", self._lake.folder
        )
        ready: dict[str, str] = json.loads(dev.wait_for('{"ready": true'))
        print(f"what happens is also shown at {ready['web']}", flush=True)
        return ready

    def _start_catalog(self) -> None:
        print("starting Iceberg's REST catalog, which is downloaded the first time", flush=True)
        place = ("--data", self._lake.folder, "--warehouse", f"file://{self._lake.folder}/warehouse")
        catalog = self._start("catalog", "-m", "tests.servers.iceberg_rest", *place)
        self._lake = replace(self._lake, catalog=json.loads(catalog.wait_for('{"ready": true'))["uri"])

    def _contest(
        self, admission: str | None, table: str, agent: dict[str, str] | None
    ) -> tuple[dict[str, int], TimeLine | None, int | None]:
        """Let both jobs write their whole feeds. Return their restarts, the time line, and the compactions."""
        uri, days = self._lake.uri(table), str(self._batch_days)
        timeline = compactor = None
        jobs = {name: ["without_gate.py", self._place, table, name, days] for name in FEEDS}
        how = "without an agent"
        if agent is not None:
            kafka, how = agent["bootstrap_servers"], f"with {admission} admission"
            jobs = {name: [f"{name}.py", self._place, table, kafka, str(admission), days] for name in FEEDS}
            timeline = TimeLine(agent["web"], uri, lambda line: print(line, flush=True))
            if self._options.primary_key:
                compactor = self._start_compactor(table, kafka)
        print(f"starting two Spark streaming queries {how}", flush=True)
        restarts = self._run_jobs(table, jobs, timeline)
        if timeline is not None:
            timeline.settle()
        compactions = None if compactor is None else _end_compactor(compactor, uri)
        return restarts, timeline, compactions

    def _run_jobs(self, table: str, jobs: dict[str, list[str]], timeline: TimeLine | None) -> dict[str, int]:
        """Run both to their ends. One that fails is restarted with its checkpoint, as an operator would do."""

        def start(name: str) -> Program:
            script, *arguments = jobs[name]
            return self._start(f"{table}-{name}-{restarts[name]}", str(HERE / script), *arguments)

        restarts = dict.fromkeys(jobs, 0)
        running = {name: start(name) for name in jobs}
        while running:
            time.sleep(0.5)
            if timeline is not None:
                timeline.update()
            for each in self._programs:
                if each.name in ("dev", "catalog") and each.code is not None:
                    raise Failed(f"{each.name} ended during the run: {each.last_line()}")
            for name, program in list(running.items()):
                if program.code == 0:
                    del running[name]
                elif program.code is not None:
                    if restarts[name] == MAX_RESTARTS:
                        raise Failed(f"the job {name} failed: {program.last_line()}")
                    restarts[name] += 1
                    print(f"the job {name} failed, and is restarted: {program.last_line()}", flush=True)
                    running[name] = start(name)
        return restarts

    def _start_compactor(self, table: str, kafka: str) -> Program:
        print("starting a compactor", flush=True)
        arguments = ("--every", "3", "--bootstrap-servers", kafka, "--table", self._lake.uri(table))
        compactor = self._start(f"{table}-compactor", "-m", "lakewarden.spark_jobs.jobs.compact", *arguments)
        # A short contest could end before Spark has started.
        compactor.wait_for(f"{self._lake.uri(table)} ready")
        return compactor


def _end_compactor(compactor: Program, uri: str) -> int:
    """End it after its first commit: each day has files of both jobs by then, so the next round has something to do."""
    compactor.wait_for(f"{uri} snapshot", COMPACTION_SECONDS)
    compactor.end()
    return len(compactor.lines(f"{uri} snapshot"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--days", type=int, default=40, choices=range(1, 366), metavar="N", help="days of flights, 40")
    add("--format", choices=list(FORMATS), default="paimon", help="of the tables; Hudi needs PySpark 3.5")
    add("--without-agent", action="store_true", help="the same jobs without an agent lose rows (Paimon)")
    add("--primary-key", action="store_true", help="primary keys and a compactor, no conflict (Paimon)")
    add("--data", type=Path, metavar="DIR", help="keep tables, checkpoints and logs in a folder below DIR")
    add("--picture", type=Path, metavar="PATH", default=Path("lakewarden-demo.svg"), help="the picture, SVG")
    options = parser.parse_args()
    if options.format != "paimon" and (options.without_agent or options.primary_key):
        parser.error("--without-agent and --primary-key: only with --format paimon")
    if options.without_agent and options.primary_key:
        parser.error("--primary-key: not with --without-agent")
    return options


def main() -> int:
    """Run the demo, and end all of its programs."""
    options, began = _options(), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="lakewarden-demo-", dir=options.data)).resolve()
    demo, kept = Demo(options, folder), options.data is not None
    try:
        contests = demo.run()
        clean = all(each.check.clean for each in contests)
        kept = kept or not (clean or options.without_agent)
    except Failed as error:
        kept = True
        print(f"{error}; logs: {folder / 'logs'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        demo.stop()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    print("", *report(contests, time.monotonic() - began), sep="\n")
    if not options.without_agent:
        options.picture.write_text(draw(contests), encoding="utf-8")
        print(f"picture: {options.picture}")
    if kept:
        print(f"tables, checkpoints and logs: {folder}")
    return 0 if clean or options.without_agent else 1


if __name__ == "__main__":
    sys.exit(main())
