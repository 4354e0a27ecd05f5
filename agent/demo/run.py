"""One run of the demo, from the first process to the report.

`lakewarden dev` (Kafka and the agent) and the two writers run as separate processes, as a user would run them. This module starts
them, shows the steps that the writers record, and compares the table at the end.
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
from rich.text import Text

from lakewarden.agent.attempts.trace import AttemptTrace
from lakewarden.agent.demo.choices import DEFAULT_BUCKET, Admissions, DemoError, FormatChoice
from lakewarden.agent.demo.contest import Contest, Transcript
from lakewarden.agent.demo.flights import FILES_PER_DAY, Feed, expected_table, load_flights, write_feeds
from lakewarden.agent.demo.picture import draw
from lakewarden.agent.demo.processes import (
    Child,
    signals_raise,
    stop_all,
    undisturbed,
    wait_for,
    wait_until_ready,
)
from lakewarden.agent.demo.programs import Arena, Commands, Programs, environment
from lakewarden.agent.demo.report import Report
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
"""Limit for a program on Spark to be ready or to end, which takes half a minute, and longer when it downloads jars."""
COMPACTION_SECONDS = 300.0
"""Limit for a compactor's first commit after the queries have ended. On a busy machine a round takes a minute."""
MOST_BATCH_DAYS = 6
"""Days of flights in a micro-batch. Its computation then takes some seconds, long enough to be worth stopping."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The size of a run, its folders and its programs."""

    days: int
    admissions: tuple[str, ...] = Admissions.BOTH.each
    """A contest with each, one after the other. Empty: one contest without an agent."""
    s3_endpoint: str | None = None
    s3_bucket: str = DEFAULT_BUCKET
    form: FormatChoice = FormatChoice.PAIMON
    primary_key: bool = False
    """Whether the tables have a primary key, and a compactor each."""
    data: Path | None = None
    picture: Path | None = None
    programs: Programs = field(default_factory=Programs)

    @property
    def batch_days(self) -> int:
        """Days of flights in one micro-batch: at most `MOST_BATCH_DAYS`, and fewer where there would be less than ten batches."""
        return max(1, min(MOST_BATCH_DAYS, self.days // 10))


class Demo:
    """One run: its folder and its processes."""

    def __init__(self, settings: DemoSettings, folder: Path, console: Console) -> None:
        self.settings = settings
        self.folder = folder
        self.children: list[Child] = []
        self.notes: list[str] = []
        self._console = console

    def run(self) -> Report:
        """Start all processes, wait until the writers have finished, stop all processes, compare the table."""
        began = time.monotonic()
        settings, note = self.settings, self._note
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
        files_per_batch = settings.batch_days * FILES_PER_DAY
        commands = Commands(
            settings.programs,
            self.folder,
            place.warehouse,
            settings.s3_endpoint,
            files_per_batch,
            settings.form,
        )
        if settings.form is FormatChoice.ICEBERG:
            commands = replace(commands, catalog=self._start_catalog(commands))
        self._create_tables(commands, arenas, feeds[0])
        servers = self._start_agent(commands, tables) if settings.admissions else None
        fought = [(arena, *self._fight(feeds, commands, arena, servers)) for arena in arenas]
        note("stopping all processes, then comparing each table with the input")
        self._stop_contests()
        seconds = time.monotonic() - began
        expected = expected_table(flights)
        rows = self._read_tables(commands, arenas)
        self.stop()
        contests = tuple(
            Contest(
                arena.admission,
                trace,
                compare(table, expected),
                restarts,
                count_compactions(arena.place) if settings.primary_key else None,
            )
            for (arena, trace, restarts), table in zip(fought, rows, strict=True)
        )
        if settings.picture is not None:
            settings.picture.write_text(draw(contests), encoding="utf-8")
        report = Report(contests, seconds, settings.picture, notes=tuple(self.notes))
        keep = settings.data is not None or (report.with_agent and not report.clean)
        return replace(report, kept=self.folder) if keep else report

    def stop(self) -> None:
        """End all processes in bounded time."""
        self._stop_contests()
        with undisturbed():
            stop_all(child for child in self.children if child.name == "catalog")

    def _stop_contests(self) -> None:
        """End all processes but the catalog; the agent last, so that it processes the writers' last events."""
        with undisturbed():
            stop_all(child for child in self.children if child.name not in {"dev", "catalog"})
            stop_all(child for child in self.children if child.name == "dev")

    def _note(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

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
            self._note("creating the tables with Spark, which downloads the format's jars the first time")
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
        if (code := wait_for(child, child.exit_code, TABLES_SECONDS)) != 0:
            why = f"did not end in {TABLES_SECONDS:.0f} s" if code is None else "failed"
            raise DemoError(f"{name} {why}: {child.last_log_line()}")

    def _start_catalog(self, commands: Commands) -> str:
        """Start Iceberg's REST catalog; returns its URI when it answers."""
        self._note("starting Iceberg's REST catalog, which is downloaded the first time")
        catalog = self._start("catalog", commands.serve_catalog())
        ready = wait_until_ready(catalog, lambda: _ready(catalog.out), DEV_READY_SECONDS, "the catalog")
        return str(ready["uri"])

    def _start_agent(self, commands: Commands, tables: Sequence[str]) -> str:
        """Start Kafka and the agent; returns the address of Kafka when both are ready."""
        self._note("starting Kafka and the agent (lakewarden dev)")
        dev = self._start("dev", commands.dev(tables))
        ready = wait_until_ready(dev, lambda: _ready(dev.out), DEV_READY_SECONDS, "the agent")
        if "web" in ready:
            self._note(f"what happens is also shown at {ready['web']}")
        return str(ready["bootstrap_servers"])

    def _fight(
        self, feeds: tuple[Feed, ...], commands: Commands, arena: Arena, servers: str | None
    ) -> tuple[AttemptTrace, dict[str, int]]:
        """Run both queries until each has written its whole feed. Return their steps, and how often each was restarted."""
        compactor = None
        if self.settings.primary_key and servers is not None:
            self._note("starting a compactor")
            compactor = self._start(f"compactor-{arena.name}", commands.compactor(arena.place, servers))
            self.wait_for_compactor(compactor, arena)
        how = f"with {arena.admission} admission" if servers else "without an agent"
        self._note(f"starting two Spark streaming queries {how}")

        def start(feed: Feed, events: Path, times: int) -> Child:
            command = commands.writer(feed.name, feed.folder, events, arena, servers)
            return self._start(f"{feed.name}-{arena.name}-{times}", command)

        transcript = Transcript(self._console)
        writers = [Writer(feed, arena.folder / "events", start) for feed in feeds]
        for event in follow(writers, tick=self._tick):
            if isinstance(event, Restarted):
                self.notes.append(f"the {event.writer} query failed with {event.reason}; it was restarted")
                self._note(self.notes[-1], "yellow")
            else:
                transcript.show(event)
        if compactor is not None:
            self.end_compactor(compactor, arena)
        return transcript.trace, {writer.feed.name: writer.restarts for writer in writers}

    @staticmethod
    def wait_for_compactor(compactor: Child, arena: Arena) -> None:
        """Return when Spark has started: within seconds, or minutes on a busy machine. A short contest could end before."""
        wait_until_ready(compactor, lambda: _said(compactor, arena, "ready"), TABLES_SECONDS, "the compactor")

    def end_compactor(self, compactor: Child, arena: Arena, seconds: float = COMPACTION_SECONDS) -> None:
        """End it after its first commit: each day has files of both queries by then, so the next round has something to do."""
        committed = wait_for(compactor, lambda: _said(compactor, arena, "snapshot"), seconds)
        ended = compactor.exit_code() is not None
        stop_all([compactor])
        if ended or not committed:
            problem = "has ended" if ended else "committed nothing"
            self.notes.append(f"the compactor {problem}: {compactor.last_log_line()}")

    def _tick(self) -> None:
        for child in self.children:
            if child.name == "dev" and child.exit_code() is not None:
                raise DemoError(f"Kafka and the agent ended during the run: {child.last_log_line()}")


def run_demo(settings: DemoSettings, console: Console) -> Report:
    """Run the demo, and end all of its processes. Raises `DemoError` if the run fails."""
    try:
        find_java()
    except JdkMissing as error:
        raise DemoError(str(error)) from error
    if settings.picture is not None and not os.access(settings.picture.parent, os.W_OK):
        raise DemoError(f"{settings.picture} can't be written; choose another --picture")
    folder = _new_folder(settings.data)
    with signals_raise():
        demo = Demo(settings, folder, console)
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


def _said(compactor: Child, arena: Arena, word: str) -> bool | None:
    lines = compactor.out.read_text(errors="replace").splitlines()
    return any(line.startswith(f"{arena.place.uri} {word}") for line in lines) or None
