"""One run of the demo, from the first process to the comparison of the tables.

`lakewarden dev` (Kafka and the agent), both queries and the compactor are processes, as a user would run them. Each has a process
group of its own, with what it starts, such as a JVM. To end them, the demo sends SIGTERM to the program, and SIGKILL to what is
left of the group some seconds later. Spark's Python workers have groups of their own, and end with their JVM. If the demo itself
is killed, the kernel ends the programs (`bound_child.py`), and the JVMs end with them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet

from lakewarden.agent.bound_child import bound
from lakewarden.agent.demo.contest import Contest, Step, Transcript, compare, draw, step_of
from lakewarden.agent.demo.flights import (
    FEEDS,
    FILES_PER_DAY,
    KEYS,
    PARTITION_KEYS,
    TABLE_SCHEMA,
    expected_table,
    load_flights,
    write_feeds,
)
from lakewarden.agent.embedded.jdk import JdkMissing, find_java
from lakewarden.agent.errors import AgentError

READY_SECONDS = 900.0
"""Limit for a program to be ready or to end: half a minute, and longer when it downloads Kafka or jars, or on a busy machine."""
COMPACTION_SECONDS = 300.0
"""Limit for a compactor's first commit after the queries have ended. On a busy machine a round takes a minute."""
QUIET_SECONDS = 600.0
"""Limit for the time in which neither writer records a step. Beside other work, a batch may take minutes."""
STOP_SECONDS = 18.0
"""Limit for an orderly end: the agent releases its locks and stops Kafka. A Spark driver needs about two seconds."""
MAX_RESTARTS = 3
"""Limit per writer: the cause of repeated failures persists after another restart."""
MOST_BATCH_DAYS = 6
"""Days of flights in a micro-batch. Its computation then takes some seconds, long enough to be worth stopping."""
_POLL_SECONDS = 0.1
_SQL_TYPES = {pa.int32(): "int", pa.string(): "string"}
_ALONE = "alone"
"""The contest without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What a run does, and where."""

    days: int
    form: str = "paimon"
    without_agent: bool = False
    primary_key: bool = False
    """Whether the tables have a primary key, and a compactor each."""
    data: Path | None = None
    picture: Path = Path("lakewarden-demo.svg")
    program: Sequence[str] = (sys.executable, "-m", "lakewarden.spark_jobs.jobs.demo")
    """What runs on Spark. Tests use a stand-in."""

    @property
    def batch_days(self) -> int:
        """Days of flights in one micro-batch: at most `MOST_BATCH_DAYS`, and fewer where there would be less than ten batches."""
        return max(1, min(MOST_BATCH_DAYS, self.days // 10))


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a run has found."""

    contests: tuple[Contest, ...]
    seconds: float
    notes: tuple[str, ...]
    """Failures during the run."""
    kept: Path | None
    """The folder of tables, checkpoints and logs, if they are kept."""

    @property
    def clean(self) -> bool:
        """Whether every row is present exactly once and correct, in each table."""
        return all(contest.check.clean for contest in self.contests)


class Child:
    """One running program, with its output in log files."""

    def __init__(self, name: str, argv: Sequence[str], logs: Path) -> None:
        self.name = name
        self._out, self._log = logs / f"{name}.out", logs / f"{name}.log"
        with self._out.open("ab") as out, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                bound(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def lines(self) -> list[str]:
        """What it has printed, without a line that isn't complete."""
        return self._out.read_text(errors="replace").split("\n")[:-1]

    def last_log_line(self) -> str:
        """The last line of the log that is not blank, for error messages."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "the log is empty")

    def is_gone(self) -> bool:
        """Whether nothing of its group runs."""
        return self.exit_code() is not None and not self.signal_group(0)

    def signal_group(self, number: int) -> bool:
        """Signal the program and what it has started. Return whether there was any of it."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def wait_for(self, begin: str, seconds: float = READY_SECONDS) -> str:
        """Return the first line that begins so. Raises `AgentError` if the program ends before, or the time is up."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.exit_code() is not None
            if (found := next((line for line in self.lines() if line.startswith(begin)), None)) is not None:
                return found
            if ended or time.monotonic() > deadline:
                why = "has ended" if ended else f"was not ready after {seconds:.0f} s"
                raise AgentError(f"{self.name} {why}: {self.last_log_line()}")
            time.sleep(_POLL_SECONDS)

    def wait_until_done(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if code != 0:
            why = f"did not end in {READY_SECONDS:.0f} s" if code is None else "failed"
            raise AgentError(f"{self.name} {why}: {self.last_log_line()}")

    def ask_to_end(self) -> None:
        self._process.terminate()


def stop_all(children: Iterable[Child], seconds: float = STOP_SECONDS) -> None:
    """End all children together, in bounded time. A second Ctrl-C leaves none of them running."""
    running = [child for child in children if child.exit_code() is None]
    with _signals(signal.SIG_IGN):
        for child in running:
            child.ask_to_end()
        left = _left_of(running, seconds)
        for child in left:
            child.signal_group(signal.SIGKILL)
        _left_of(left, seconds)


def _left_of(children: Sequence[Child], seconds: float) -> Sequence[Child]:
    """Wait until they are gone, and return the others. One that was gone isn't asked again: its id may be another program's."""
    deadline = time.monotonic() + seconds
    while (children := [each for each in children if not each.is_gone()]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return children


class Writer:
    """The query of one feed: its current process, and the number of restarts.

    A writer that fails is restarted with the same checkpoint, as an operator would do: Paimon expects a streaming job to fail and
    restart after a conflict that it can't resolve.
    """

    def __init__(self, name: str, start: Callable[[str], Child]) -> None:
        self.name, self.restarts, self.done = name, 0, False
        self._start, self._seen = start, 0
        self._child = start(f"{name}-0")

    def poll(self) -> Iterator[Step | str]:
        """The steps since the last call, and a note if the process has failed and was restarted."""
        code = None if self.done else self._child.exit_code()
        lines = self._child.lines()
        yield from (step_of(line) for line in lines[self._seen :] if line.startswith("{"))
        self._seen = len(lines)
        if code == 0:
            self.done = True
        elif code is not None:
            why = self._child.last_log_line()
            if self.restarts == MAX_RESTARTS:
                raise AgentError(
                    f"the {self.name} query failed {MAX_RESTARTS + 1} times; the last error: {why}"
                )
            self.restarts += 1
            self._child, self._seen = self._start(f"{self.name}-{self.restarts}"), 0
            yield f"the {self.name} query failed with code {code}: {why}; it was restarted"


class Demo:
    """One run: its folder and its processes."""

    def __init__(self, settings: DemoSettings, folder: Path, show: Callable[[str], None]) -> None:
        self.settings, self.folder = settings, folder
        self.notes: list[str] = []
        self._children: list[Child] = []
        self._show = show

    def run(self) -> DemoResult:
        """Start all processes, wait until the writers have finished, stop all processes, compare the tables."""
        began, settings, folder = time.monotonic(), self.settings, self.folder
        (folder / "logs").mkdir()
        flights = load_flights(settings.days)
        write_feeds(flights, folder / "feeds", settings.batch_days)
        self._show(f"two feeds with {flights.num_rows:,} flights of {settings.days} days")
        names = (_ALONE,) if settings.without_agent else ("optimistic", "auto")
        tables = {name: f"file://{folder}/warehouse/demo.db/flights_{name}" for name in names}
        keyed = ", with a primary key" if settings.primary_key else ""
        self._show(f"{settings.form}, partitioned by month and day{keyed}: {' and '.join(tables.values())}")
        catalog = self._start_catalog() if settings.form == "iceberg" else None
        servers = None if settings.without_agent else self._start_agent()
        self._write_plan(tables, servers, catalog)
        self._start("create").wait_until_done()
        fought = [self._fight(name, uri, servers) for name, uri in tables.items()]
        self._show("stopping all processes, then comparing each table with the input")
        self.stop(but="catalog")
        seconds = time.monotonic() - began
        self._start("read").wait_until_done()
        expected = expected_table(flights)
        contests = tuple(
            Contest(
                None if settings.without_agent else name,
                transcript.attempts,
                compare(pyarrow.parquet.read_table(folder / "rows" / name), expected),
                restarts,
                compactions,
            )
            for name, (transcript, restarts, compactions) in zip(names, fought, strict=True)
        )
        settings.picture.write_text(draw(contests), encoding="utf-8")
        result = DemoResult(contests, seconds, tuple(self.notes), folder)
        keep = settings.data is not None or not (settings.without_agent or result.clean)
        return result if keep else DemoResult(contests, seconds, result.notes, None)

    def stop(self, but: str = "") -> None:
        """End all other processes; the agent last, so that it processes the writers' last events."""
        stop_all(child for child in self._children if child.name not in {"dev", but})
        stop_all(child for child in self._children if child.name == "dev")

    def _start(self, name: str, argv: Sequence[str] | None = None) -> Child:
        """Start a program: that on Spark, with what its name says, if it isn't another one."""
        argv = argv or [*self.settings.program, str(self.folder / "plan.json"), name]
        child = Child(name, argv, self.folder / "logs")
        self._children.append(child)
        return child

    def _start_agent(self) -> str:
        """Start Kafka and the agent, which serves the tables below the folder. Return Kafka's address when both are ready."""
        self._show("starting Kafka and the agent (lakewarden dev)")
        command = [sys.executable, "-m", "lakewarden.agent", "dev", "--output", "json"]
        ready = json.loads(
            self._start("dev", [*command, "--data", str(self.folder)]).wait_for('{"ready": true')
        )
        self._show(f"what happens is also shown at {ready['web']}")
        return str(ready["bootstrap_servers"])

    def _start_catalog(self) -> str:
        """Start Iceberg's REST catalog. Return its URI when it answers."""
        self._show("starting Iceberg's REST catalog, which is downloaded the first time")
        command = [sys.executable, "-m", "lakewarden.agent.embedded.iceberg_rest"]
        options = ["--data", str(self.folder), "--warehouse", f"file://{self.folder}/warehouse"]
        ready = json.loads(self._start("catalog", [*command, *options]).wait_for('{"ready": true'))
        return str(ready["uri"])

    def _write_plan(self, tables: dict[str, str], servers: str | None, catalog: str | None) -> None:
        """What the program on Spark must know (`Plan` in `spark_jobs/jobs/demo.py`)."""
        plan = {
            "form": self.settings.form,
            "primary_key": self.settings.primary_key,
            "columns": {each.name: _SQL_TYPES[each.type] for each in TABLE_SCHEMA},
            "keys": KEYS,
            "partition_by": PARTITION_KEYS,
            "files_per_batch": self.settings.batch_days * FILES_PER_DAY,
            "tables": tables,
            "bootstrap_servers": servers,
            "catalog": catalog,
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def _fight(
        self, name: str, uri: str, servers: str | None
    ) -> tuple[Transcript, dict[str, int], int | None]:
        """Run both queries until each has written its whole feed. Return their steps, restarts, and the compactions."""
        compactor = None
        if self.settings.primary_key:
            self._show("starting a compactor")
            command = [sys.executable, "-m", "lakewarden.spark_jobs.jobs.compact", "--every", "3"]
            options = ["--bootstrap-servers", str(servers), "--table", uri]
            compactor = self._start(f"compactor-{name}", [*command, *options])
            # A short contest could end before Spark has started.
            compactor.wait_for(f"{uri} ready")
        how = f"with {name} admission" if servers else "without an agent"
        self._show(f"starting two Spark streaming queries {how}")
        transcript = Transcript(self._show)
        writers = [Writer(feed, lambda role: self._start(f"{name}-{role}")) for feed in FEEDS]
        for event in self._follow(writers):
            if isinstance(event, Step):
                transcript.add(event)
            else:
                self.notes.append(event)
                self._show(event)
        compactions = None if compactor is None else self.end_compactor(compactor, uri)
        return transcript, {writer.name: writer.restarts for writer in writers}, compactions

    def _follow(self, writers: Sequence[Writer]) -> Iterator[Step | str]:
        """Yield what all writers do until all are done. Raises `AgentError` if the agent ends, or none does anything for long."""
        last_event = time.monotonic()
        while not all(writer.done for writer in writers):
            events = [event for writer in writers for event in writer.poll()]
            # Only steps have a time. A restart comes last, because it is detected after the steps.
            yield from sorted(events, key=lambda each: each.at if isinstance(each, Step) else float("inf"))
            last_event = time.monotonic() if events else last_event
            if time.monotonic() - last_event > QUIET_SECONDS:
                raise AgentError(f"neither query made progress for {QUIET_SECONDS:.0f} s")
            for child in self._children:
                if child.name == "dev" and child.exit_code() is not None:
                    raise AgentError(f"Kafka and the agent ended during the run: {child.last_log_line()}")
            time.sleep(_POLL_SECONDS)

    def end_compactor(self, compactor: Child, uri: str, seconds: float = COMPACTION_SECONDS) -> int:
        """End it after its first commit: each day has files of both queries by then, so the next round has something to do."""
        committed = f"{uri} snapshot"
        try:
            compactor.wait_for(committed, seconds)
            if compactor.exit_code() is not None:
                self.notes.append(f"{compactor.name} has ended: {compactor.last_log_line()}")
        except AgentError as error:
            self.notes.append(str(error))
        stop_all([compactor])
        return sum(line.startswith(committed) for line in compactor.lines())


def run_demo(settings: DemoSettings, show: Callable[[str], None]) -> DemoResult:
    """Run the demo, and end all of its processes. Raises `AgentError` if the run fails."""
    try:
        find_java()
    except JdkMissing as error:
        raise AgentError(str(error)) from error
    if not os.access(settings.picture.parent, os.W_OK):
        raise AgentError(f"{settings.picture} can't be written; choose another --picture")
    folder = _new_folder(settings.data)
    kept: Path | None = None if settings.data is None else folder
    with _signals(signal.default_int_handler):
        demo = Demo(settings, folder, show)
        try:
            result = demo.run()
            kept = result.kept
        except AgentError as error:
            kept = folder
            raise AgentError(f"{error}; logs: {folder / 'logs'}") from error
        finally:
            demo.stop()
            if kept is None:
                shutil.rmtree(folder, ignore_errors=True)
    return result


def _new_folder(data: Path | None) -> Path:
    name = f"lakewarden-demo-{time.strftime('%Y%m%d-%H%M%S')}"
    if data is None:
        return Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
    folder = data.resolve() / name
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise AgentError(f"{folder} can't be created: {error.strerror}; choose another --data") from error
    return folder


def _environment() -> dict[str, str]:
    """The variables of this process, without settings of lakewarden: they may configure another agent of the user's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LAKEWARDEN_") or name == "LAKEWARDEN_CACHE_DIR"
    }
    return {**kept, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP so for the block."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
