"""One run of the demo, from the first process to the report.

`lakewarden dev` (Kafka and the agent), the two writers and the conflicts job run as separate processes, as a user would run
them. This module starts them, shows the steps that the writers record, and compares the table at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from lakewarden.agent.attempts.trace import Trace
from lakewarden.agent.demo import figures
from lakewarden.agent.demo.compactor import Compactor
from lakewarden.agent.demo.contest import Arena, Contest
from lakewarden.agent.demo.errors import DemoError
from lakewarden.agent.demo.flights import FILES_PER_DAY, Feed, expected_table, load_flights, write_feeds
from lakewarden.agent.demo.interrupts import signals_raise, undisturbed
from lakewarden.agent.demo.log import ConflictLog, read_log, victims_in_parquet
from lakewarden.agent.demo.picture import draw
from lakewarden.agent.demo.processes import Child, stop_all, wait_for, wait_until_ready
from lakewarden.agent.demo.programs import Commands, Programs, environment
from lakewarden.agent.demo.report import Report
from lakewarden.agent.demo.screen import Screen
from lakewarden.agent.demo.settings import DEFAULT_BUCKET, Admissions, TableFormat
from lakewarden.agent.demo.table import (
    TablePlace,
    count_compactions,
    create_table,
    local_place,
    read_rows,
    read_table,
    s3_place,
)
from lakewarden.agent.demo.verification import compare
from lakewarden.agent.demo.writers import Restarted, Writer, follow
from lakewarden.agent.embedded.jdk import JdkMissing, find_java

DEV_READY_SECONDS = 300.0
"""Limit for the start, which takes about ten seconds, and longer the first time, when it downloads Kafka."""

TABLES_SECONDS = 900.0
"""Limit for the program that creates or reads the tables, which takes half a minute, and longer when it downloads jars."""

PARQUET_SECONDS = 30.0
"""Limit for the conflicts job to write the last conflict."""

MOST_BATCH_DAYS = 6
"""Days of flights in a micro-batch. Its computation then takes some seconds, long enough to be worth stopping."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The size of a run, its folders and its programs."""

    days: int
    admissions: tuple[str, ...] = Admissions.BOTH.each
    """A contest with each, one after the other. Empty: one contest without an agent."""
    s3_endpoint: str | None = None
    s3_bucket: str = DEFAULT_BUCKET
    form: TableFormat = TableFormat.PAIMON
    primary_key: bool = False
    """Whether the tables have a primary key, and a compactor each."""
    data: Path | None = None
    picture: Path | None = None
    programs: Programs = field(default_factory=Programs)

    @property
    def with_agent(self) -> bool:
        """Whether an agent coordinates the queries."""
        return bool(self.admissions)

    @property
    def batch_days(self) -> int:
        """Days of flights in one micro-batch: at most `MOST_BATCH_DAYS`, and fewer where there would be less than ten batches."""
        return max(1, min(MOST_BATCH_DAYS, self.days // 10))

    @property
    def files_per_batch(self) -> int:
        """Files of a feed in one micro-batch."""
        return self.batch_days * FILES_PER_DAY


class Demo:
    """One run: its folder, its processes and its screen."""

    def __init__(self, settings: DemoSettings, folder: Path, screen: Screen) -> None:
        self.settings = settings
        self.folder = folder
        self.screen = screen
        self.children: list[Child] = []
        self.notes: list[str] = []

    def run(self) -> Report:
        """Start all processes, wait until the writers have finished, stop all processes, compare the table."""
        began = time.monotonic()
        settings, note = self.settings, self.screen.note
        (self.folder / "logs").mkdir()
        flights = load_flights(settings.days)
        feeds = write_feeds(flights, self.folder / "feeds", settings.batch_days)
        files = " and ".join(f"{feed.name} ({feed.rows:,} rows in {feed.files} files)" for feed in feeds)
        note(f"two feeds with {flights.num_rows:,} flights of {settings.days} days: {files}")
        place = self._place()
        arenas = [self._arena(place, admission) for admission in settings.admissions or (None,)]
        tables = [arena.place.uri for arena in arenas]
        keyed = ", with a primary key" if settings.primary_key else ""
        note(f"{settings.form.label}, partitioned by month and day{keyed}: {' and '.join(tables)}")
        commands = Commands(
            settings.programs,
            self.folder,
            place.warehouse,
            settings.s3_endpoint,
            settings.files_per_batch,
            settings.form,
        )
        self._create_tables(commands, arenas, feeds[0])

        servers = self._start_agent(commands, tables) if settings.with_agent else None
        job = self._start("conflicts", commands.conflicts_job(servers)) if servers else None
        fought = [(arena, *self._run_writers(feeds, commands, arena, servers)) for arena in arenas]
        logs, in_parquet = [ConflictLog() for _ in arenas], None
        if servers is not None and job is not None:
            logs = [read_log(servers, table) for table in tables]
            in_parquet = self._wait_for_parquet(job, {victim for log in logs for victim in log.victims})
        note("stopping all processes, then comparing each table with the input")
        self.stop()
        seconds = time.monotonic() - began
        expected = expected_table(flights)
        rows = self._read_tables(commands, arenas)
        contests = tuple(
            Contest(
                arena.admission,
                trace,
                compare(table, expected),
                log,
                restarts,
                count_compactions(arena.place) if settings.primary_key else None,
            )
            for (arena, trace, restarts), log, table in zip(fought, logs, rows, strict=True)
        )
        return self._report(contests, in_parquet, seconds)

    def stop(self) -> None:
        """End all processes in bounded time; the agent last, so that it processes the writers' last events."""
        with undisturbed():
            stop_all(child for child in self.children if child.name != "dev")
            stop_all(child for child in self.children if child.name == "dev")

    def _place(self) -> TablePlace:
        keyed = self.settings.primary_key
        if self.settings.s3_endpoint is None:
            return local_place(self.folder / "warehouse", self.settings.form, primary_key=keyed)
        bucket, prefix = self.settings.s3_bucket, self.folder.name
        return s3_place(self.settings.s3_endpoint, bucket, prefix, primary_key=keyed)

    def _start(self, name: str, argv: list[str]) -> Child:
        child = Child(name, argv, self.folder / "logs", environment())
        self.children.append(child)
        return child

    def _arena(self, place: TablePlace, admission: str | None) -> Arena:
        """Create the folder of a contest."""
        arena = Arena(admission, place, self.folder)
        if admission is not None:
            arena = Arena(admission, replace(place, name=f"flights_{admission}"), self.folder / admission)
        (arena.folder / "events").mkdir(parents=True)
        return arena

    def _create_tables(self, commands: Commands, arenas: Sequence[Arena], every_flight: Feed) -> None:
        if self.settings.form.on_spark:
            self.screen.note(
                "creating the tables with Spark, which downloads the format's jars the first time"
            )
            places = [arena.place for arena in arenas]
            self._run_to_its_end("create-tables", commands.create_tables(places, every_flight.folder))
        else:
            for arena in arenas:
                create_table(arena.place)

    def _read_tables(self, commands: Commands, arenas: Sequence[Arena]) -> list[pa.Table]:
        """The rows of each table, as the format itself reads them."""
        if not self.settings.form.on_spark:
            return [read_table(arena.place) for arena in arenas]
        self._run_to_its_end("read-tables", commands.read_tables([arena.place for arena in arenas]))
        return [read_rows(commands.rows_folder / str(number)) for number in range(len(arenas))]

    def _run_to_its_end(self, name: str, argv: list[str]) -> None:
        child = self._start(name, argv)
        code = wait_for(child, child.exit_code, TABLES_SECONDS)
        if code is None:
            raise DemoError(f"{name} did not end in {TABLES_SECONDS:.0f} s: {child.last_log_line()}")
        if code != 0:
            raise DemoError(f"{name} failed: {child.last_log_line()}")

    def _start_agent(self, commands: Commands, tables: Sequence[str]) -> str:
        """Start Kafka and the agent; returns the address of Kafka when both are ready."""
        self.screen.note("starting Kafka and the agent (lakewarden dev)")
        dev = self._start("dev", commands.dev(tables))
        ready = wait_until_ready(dev, lambda: _ready(dev.out), DEV_READY_SECONDS, "the agent")
        if "web" in ready:
            self.screen.note(f"what happens is also shown at {ready['web']}")
        return str(ready["bootstrap_servers"])

    def _run_writers(
        self, feeds: tuple[Feed, ...], commands: Commands, arena: Arena, servers: str | None
    ) -> tuple[Trace, dict[str, int]]:
        """Run both queries until each has written its whole feed. Return their steps, and how often each was restarted."""
        compactor = self._start_compactor(commands, arena, servers) if servers else None
        how = f"with {arena.admission} admission" if servers else "without an agent"
        self.screen.note(f"starting two Spark streaming queries {how}")

        def start(feed: Feed, events: Path, times: int) -> Child:
            command = commands.writer(feed.name, feed.folder, events, arena, servers)
            return self._start(f"{feed.name}-{arena.name}-{times}", command)

        trace = self.screen.begin()
        writers = [Writer(feed, arena.folder / "events", start) for feed in feeds]
        for feed in feeds:
            self.screen.expect(feed.name, -(-feed.files // self.settings.files_per_batch))
        for event in follow(writers, tick=self._tick):
            if isinstance(event, Restarted):
                self.notes.append(f"the {event.writer} query failed with {event.reason}; it was restarted")
                self.screen.note(self.notes[-1], "yellow")
            else:
                self.screen.show(event)
        if compactor is not None and (problem := compactor.stop()) is not None:
            self.notes.append(problem)
        return trace, {writer.feed.name: writer.restarts for writer in writers}

    def _start_compactor(self, commands: Commands, arena: Arena, servers: str) -> Compactor | None:
        """Start the compactor of a table with a primary key, and wait until it is ready."""
        if not self.settings.primary_key:
            return None
        self.screen.note("starting a compactor")
        child = self._start(f"compactor-{arena.name}", commands.compactor(arena.place, servers))
        compactor = Compactor(child, arena.place.uri)
        compactor.wait_until_ready()
        return compactor

    def _tick(self) -> None:
        self.screen.tick(time.time())
        for child in self.children:
            if child.name == "dev" and child.exit_code() is not None:
                raise DemoError(f"Kafka and the agent ended during the run: {child.last_log_line()}")

    def _wait_for_parquet(self, job: Child, victims: set[str]) -> set[str] | None:
        """The aborted transactions that the conflicts job has written, when they are complete or the time is up."""
        self.screen.note("waiting until the third query has written the last conflict")
        deadline = time.monotonic() + PARQUET_SECONDS
        while True:
            ended = job.exit_code() is not None
            found = victims_in_parquet(self.folder / "conflicts")
            if (found or set()) >= victims or time.monotonic() > deadline:
                return found
            if ended:
                self.notes.append(f"the third query has ended: {job.last_log_line()}")
                return found
            time.sleep(_POLL_SECONDS)

    def _report(self, contests: tuple[Contest, ...], in_parquet: set[str] | None, seconds: float) -> Report:
        with_agent = self.settings.with_agent
        if with_agent:
            self.notes += figures.discrepancies([(each.trace, each.log) for each in contests], in_parquet)
        picture = self.settings.picture
        if picture is not None:
            draw(contests, picture)
        report = Report(contests, seconds, picture, notes=tuple(self.notes))
        keep = (with_agent and not report.clean) or self.settings.data is not None
        return replace(report, kept=self.folder) if keep else report


def run_demo(settings: DemoSettings, console: Console) -> Report:
    """Run the demo, and end all of its processes. Raises `DemoError` if the run fails."""
    try:
        find_java()
    except JdkMissing as error:
        raise DemoError(str(error)) from error
    if settings.picture is not None and not os.access(settings.picture.parent, os.W_OK):
        raise DemoError(f"{settings.picture} can't be written; choose another --picture")
    folder = _new_folder(settings.data)
    with signals_raise(), Screen(console) as screen:
        demo = Demo(settings, folder, screen)
        delete_folder = settings.data is None
        try:
            report = demo.run()
            delete_folder = delete_folder and report.kept is None
        except DemoError as error:
            delete_folder = False
            raise DemoError(f"{error}; logs: {folder / 'logs'}") from error
        finally:
            demo.stop()
            if delete_folder:
                shutil.rmtree(folder, ignore_errors=True)
    return report


def _new_folder(data: Path | None) -> Path:
    name = f"lakewarden-demo-{time.strftime('%Y%m%d-%H%M%S')}"
    if data is None:
        return Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
    folder = data.resolve() / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DemoError(f"{folder} can't be created: {error.strerror}; choose another --data") from error
    return folder


def _ready(out: Path) -> dict[str, Any] | None:
    """The line that `lakewarden dev` prints when it is ready."""
    for line in out.read_text(errors="replace").splitlines(keepends=True):
        if line.startswith("{") and line.endswith("\n"):
            found: dict[str, Any] = json.loads(line)
            if found.get("ready") is True:
                return found
    return None
