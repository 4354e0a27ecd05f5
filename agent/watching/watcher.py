"""The watcher: looks at each table once a period, and publishes what `handlers/hudi/watching.py` makes of it.

- Each table has a task of its own. At most `MAX_ROUNDS` tables are looked at at the same time.
- One round of a table: list the timeline; if an instant is pending, also the markers and the heartbeats; read what has changed;
  publish. The next round begins after Kafka has acknowledged it. If Kafka doesn't, the same events are sent again: their ids
  don't change.
- A table that can't be read, or whose version isn't known, is reported once in the log and tried again in each period. When it
  can be read again, that is logged too. A table whose properties change (an upgrade, or another table in its place) is watched
  from the start.
- A glob has its wildcard in the last segment: `s3://lake/hudi/*`. New tables below it are looked for every
  `DISCOVERY_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import anyio
import structlog
from anyio.abc import TaskGroup

from lakewarden.agent.clock import monotonic, utc_now
from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.files import AbsentFileError, Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.reports import reports
from lakewarden.events import WriterEventUnion
from lakewarden.handlers.hudi.errors import UnreadableHudi
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import HEARTBEAT_FOLDER, MARKER_FOLDER, PROPERTIES
from lakewarden.handlers.hudi.watching import File, Round, WatchedTable

log = structlog.get_logger(__name__)

MAX_ROUNDS = 32
"""Tables that are looked at at the same time."""
DISCOVERY_SECONDS = 60.0
"""Between two looks for tables below a glob, and between two reads of a table's properties."""
_WILDCARDS = "*?["

Publish = Callable[[list[WriterEventUnion]], Awaitable[None]]
"""Publishes events in order, and returns when all are acknowledged. It retries by itself."""


@dataclass(slots=True)
class _Table:
    """One table that is watched."""

    uri: str
    files: TableFiles
    watched: WatchedTable | None = None
    properties_read: float = 0.0
    trouble: str | None = None
    """Why it can't be read, as it was logged."""
    problems: set[tuple[str, str]] = field(default_factory=set)
    """Files that can't be read, as they were logged."""
    unread: list[tuple[str, str]] = field(default_factory=list)
    """Files that could not be read in this round, and why."""


class Watcher:
    """Watches tables until it is cancelled."""

    def __init__(self, settings: Settings, tables: tuple[str, ...], publish: Publish) -> None:
        self._settings = settings
        self._globs = tables
        self._publish = publish
        self._buckets = Buckets(settings)
        self._rounds = anyio.CapacityLimiter(MAX_ROUNDS)
        self.tables: dict[str, _Table] = {}
        self._unreadable_globs: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled. Raises `SettingsError` if a glob can't be used."""
        for glob in self._globs:
            _require_usable(glob)
        async with anyio.create_task_group() as tasks:
            for glob in self._globs:
                if not _is_glob(glob):
                    self._start(tasks, glob)
            while True:
                for glob in self._globs:
                    if _is_glob(glob):
                        await self._discover(tasks, glob)
                await anyio.sleep(DISCOVERY_SECONDS)

    @property
    def requests(self) -> int:
        """How many listings and reads were sent."""
        return sum(each.files.requests for each in self.tables.values())

    def _start(self, tasks: TaskGroup, uri: str) -> None:
        if uri not in self.tables:
            table = self.tables[uri] = _Table(uri, self._buckets.table(uri))
            tasks.start_soon(self._watch, table)

    async def _discover(self, tasks: TaskGroup, glob: str) -> None:
        folder, _, pattern = glob.rpartition("/")
        try:
            below = self._buckets.table(folder)
            for name in await below.folders(""):
                uri = f"{folder}/{name}"
                if fnmatchcase(name, pattern) and uri not in self.tables:
                    try:
                        await below.read(f"{name}/{PROPERTIES}")
                    except AbsentFileError:
                        continue
                    self._start(tasks, uri)
                    log.info("watch.table-found", table=uri, glob=glob)
        except AgentError as error:
            if glob not in self._unreadable_globs:
                log.warning("watch.glob-unreadable", glob=glob, why=str(error))
            self._unreadable_globs.add(glob)
        else:
            self._unreadable_globs.discard(glob)

    async def _watch(self, table: _Table) -> None:
        while True:
            began = monotonic()
            async with self._rounds:
                active = await self._look(table)
            period = self._settings.watch_seconds if active else self._settings.watch_idle_seconds
            await anyio.sleep(max(0.0, began + period - monotonic()))

    async def _look(self, table: _Table) -> bool:
        """One round. Returns whether an instant of the table is pending."""
        try:
            watched = await self._watched(table)
            timeline = await table.files.folder(watched.table.timeline)
            timeline.pop(PROPERTIES, None)
            active: dict[str, File] = {}
            if watched.is_active(timeline):
                active = await table.files.below(MARKER_FOLDER)
                active |= await table.files.below(HEARTBEAT_FOLDER)
            bodies = await self._read(table, watched.wanted(timeline, active))
        except (UnreadableTableError, UnreadableHudi) as error:
            self._report_trouble(table, str(error))
            return False
        if table.trouble is not None:
            log.info("watch.table-readable", table=table.uri)
            table.trouble = None
        seen = watched.advance(Round(monotonic(), timeline, active, bodies))
        self._report_problems(table, watched.problems + table.unread)
        events = [event for each in seen for event in reports(table.uri, each, utc_now())]
        if events:
            for each in seen:
                log.debug("watch.seen", table=table.uri, what=type(each).__name__, instant=each.instant)
            await self._publish(events)
        return bool(watched.pending)

    async def _watched(self, table: _Table) -> WatchedTable:
        """The state of a table, made anew if its properties have changed."""
        now = monotonic()
        if table.watched is None or now - table.properties_read >= DISCOVERY_SECONDS:
            found = read_properties(await table.files.read(PROPERTIES))
            table.properties_read = now
            if table.watched is None or table.watched.table != found:
                _log_start(table, found)
                table.watched = WatchedTable(found, self._settings.watch_grace_seconds)
        return table.watched

    async def _read(self, table: _Table, paths: list[str]) -> dict[str, bytes]:
        """The files that could be read. The others are wanted again in the next round."""
        bodies: dict[str, bytes] = {}
        table.unread = []
        for path in paths:
            try:
                bodies[path] = await table.files.read(path)
            except AbsentFileError as error:
                # Hudi removes markers and files of the timeline at any time, but never a table's properties.
                if path == PROPERTIES:
                    table.unread.append((path, str(error)))
            except UnreadableTableError as error:
                table.unread.append((path, str(error)))
        return bodies

    def _report_trouble(self, table: _Table, why: str) -> None:
        if table.trouble is None:
            log.warning("watch.table-unreadable", table=table.uri, why=why, detail="the watcher tries again")
        table.trouble = why

    def _report_problems(self, table: _Table, problems: list[tuple[str, str]]) -> None:
        for path, why in problems:
            if (path, why) not in table.problems:
                log.warning("watch.file-unreadable", table=table.uri, file=path, why=why)
        table.problems = set(problems)


def _log_start(table: _Table, found: HudiTable) -> None:
    changed = table.watched is not None
    event = "watch.table-changed" if changed else "watch.table"
    log.info(event, table=table.uri, version=found.version, layout=found.layout, kind=found.kind)


def _is_glob(glob: str) -> bool:
    return any(each in glob for each in _WILDCARDS)


def _require_usable(glob: str) -> None:
    folder, _, pattern = glob.rpartition("/")
    if any(each in folder for each in _WILDCARDS) or not pattern or folder.endswith(":/"):
        raise SettingsError(
            f"a watcher can't look for tables at {glob!r}: wildcards stand in the last segment only, as in s3://lake/hudi/*"
        )
