"""The watcher: looks at each table once a period, and publishes what its writers have done without the gate.

- Each table has a task of its own. At most `MAX_ROUNDS` tables are looked at at the same time.
- The first look finds out which format a table has (`formats.py`). The format's follower does the rest.
- The next look begins after Kafka has acknowledged what the last one found. If Kafka doesn't, the same events are sent again:
  their ids don't change.
- **A commit whose age isn't known is not reported** (docs/decisions/0046). It is younger than the start of the last look that
  didn't find it. If that is longer ago than `_max_age`, writers of the gate have begun since that have the commit in their
  base, and aborting these would be wrong. The same if Kafka doesn't acknowledge it in that time.
- A table that can't be read, or whose version isn't known, is reported once in the log and tried again in each period. When it
  can be read again, that is logged too. A table that fails in any other way is begun again in the next period.
- A glob has its wildcard in the last segment: `s3://lake/hudi/*`. New tables below it are looked for every
  `DISCOVERY_SECONDS`. A folder that can't be listed hides no other.
- A table that a glob has found is left after its folders were absent for `ABSENT_SECONDS`: it was dropped. If it comes back, the
  glob finds it as a new table. A table that can't be read is not absent. A table that `watch` names is never left.
- A watcher of an agent watches some of the tables only (docs/decisions/0054). When they change, it looks for tables at once.
- A table of a catalog (`prod:air.flights`) has the name of its entry until the catalog has answered, and then the URI of its
  location, which may change. So each watcher asks for each of them, and again every `DISCOVERY_SECONDS` while another agent's
  watcher has its URI. The catalog lists the tables that a pattern (`prod:air.*`) finds, in a task of
  its own, and has its own limit of simultaneous looks: a catalog that hangs delays its own tables only.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, assert_never
from uuid import UUID, uuid5

import anyio
import structlog
from anyio.abc import TaskGroup

from lakewarden import events
from lakewarden.agent.clock import monotonic, utc_now
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.unrequested import guarded
from lakewarden.agent.watching.catalog import TableName
from lakewarden.agent.watching.catalogs import catalogs
from lakewarden.agent.watching.files import Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import Look, Seen, TableFollower
from lakewarden.agent.watching.formats import folders_of, follow, format_of
from lakewarden.agent.watching.iceberg import CatalogFollower
from lakewarden.events import WriterEventUnion, is_glob, require_canonical
from lakewarden.handlers.hudi.watching import Alive, Completed, Ended, Opened, Touched
from lakewarden.handlers.observations import ObservedCommit
from lakewarden.handlers.unreadable import Unreadable, why_unreadable

log = structlog.get_logger(__name__)

MAX_ROUNDS = 32
"""Tables that are looked at at the same time."""
DISCOVERY_SECONDS = 60.0
"""Between two looks for tables below a glob."""
ABSENT_SECONDS = 180.0
"""A table below a glob is left after it was absent for so long."""
MAX_AGE_SECONDS = 30.0
"""Age of a commit that is still reported, unless `watch_idle_seconds` is a third of it or more."""

Publish = Callable[[list[WriterEventUnion]], Awaitable[None]]
"""Publishes events in order, and returns when all are acknowledged. It retries by itself."""


@dataclass(slots=True)
class _Table:
    """One table that is watched."""

    key: str
    """Its URI, or its name in a catalog."""
    uri: str
    """Until the catalog has answered, its name there."""
    follow: Callable[[], Awaitable[TableFollower]]
    rounds: anyio.CapacityLimiter
    files: TableFiles | None = None
    glob: str | None = None
    """The glob that has found it, or None if `watch` names it."""
    absent_since: float | None = None
    """When the glob's folder was listed without it for the first time."""
    is_dropped: bool = False
    is_refused: bool = False
    """Whether it was logged that the agents don't serve it."""
    watched: TableFollower | None = None
    looked_at: float | None = None
    """When the last look began that succeeded."""
    trouble: str | None = None
    """Why it can't be read, as it was logged."""
    problems: set[tuple[str, str]] = field(default_factory=set)
    """Files that can't be read, as they were logged."""


class Watcher:
    """Watches tables until it is cancelled."""

    def __init__(
        self,
        settings: Settings,
        tables: tuple[str, ...],
        publish: Publish,
        is_own: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`tables`: as `Settings.watch`. `is_own`: whether this watcher watches a table; call `reassign` when that changes."""
        self._settings = settings
        self._globs = tables
        self._publish = publish
        self._is_own = is_own
        self._reassigned = anyio.Event()
        self._buckets = Buckets(settings)
        self._rounds = anyio.CapacityLimiter(MAX_ROUNDS)
        self._catalogs = catalogs(settings)
        self._allows = settings.placement().allows
        self.tables: dict[str, _Table] = {}
        self._unreadable: set[str] = set()
        """Globs, and folders below them, that can't be listed, as they were logged."""

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                names = {entry: TableName.of(entry) for entry in self._globs}
                for entry, name in names.items():
                    if name is not None and is_glob(entry):
                        tasks.start_soon(self._keep_discovering, tasks, entry, name)
                    elif name is not None:
                        self._start_named(tasks, name)
                paths = [entry for entry, name in names.items() if name is None]
                while True:
                    self._reassigned = anyio.Event()
                    for each in paths:
                        if not is_glob(each) and self._is_own(each):
                            self._start(tasks, each)
                    for each in paths:
                        if is_glob(each):
                            await self._discover(tasks, each)
                    with anyio.move_on_after(DISCOVERY_SECONDS):
                        await self._reassigned.wait()
        finally:
            for catalog in self._catalogs.values():
                await catalog.close()

    def reassign(self) -> None:
        """Look for new tables of this watcher now. It leaves former ones before its next look at them."""
        self._reassigned.set()

    @property
    def requests(self) -> int:
        files = sum(each.files.requests for each in self.tables.values() if each.files is not None)
        return files + sum(each.requests for each in self._catalogs.values())

    def _start(self, tasks: TaskGroup, uri: str, glob: str | None = None) -> None:
        if uri not in self.tables:
            files = self._buckets.table(uri)
            make = partial(follow, uri, files, self._settings)
            table = self.tables[uri] = _Table(uri, uri, make, self._rounds, files, glob)
            tasks.start_soon(self._watch, table)

    def _start_named(self, tasks: TaskGroup, name: TableName, glob: str | None = None) -> None:
        key, catalog = str(name), self._catalogs[name.catalog]

        async def make() -> TableFollower:
            return CatalogFollower(name, catalog, self._buckets, self._is_own)

        if key not in self.tables:
            table = self.tables[key] = _Table(key, key, make, catalog.rounds, glob=glob)
            tasks.start_soon(self._watch_named, table)

    async def _keep_discovering(self, tasks: TaskGroup, glob: str, pattern: TableName) -> None:
        """A task of its own, so that a catalog that hangs delays no other table."""
        while True:
            await self._discover_names(tasks, glob, pattern)
            await anyio.sleep(DISCOVERY_SECONDS)

    async def _discover_names(self, tasks: TaskGroup, glob: str, pattern: TableName) -> None:
        """As `_discover`, below a namespace of a catalog."""
        try:
            listed = await self._catalogs[pattern.catalog].tables(pattern.namespace)
        except Exception as error:  # noqa: BLE001 - the answers are another program's
            self._report_unreadable("watch.glob-unreadable", glob, glob, error)
            return
        self._unreadable.discard(glob)
        present = {
            str(replace(pattern, table=each)): each
            for each in listed
            if fnmatchcase(each, pattern.table) and each.isprintable()
        }
        for table in self.tables.values():
            if table.glob == glob:
                self._note_presence(table, is_table=table.key in present)
        for key in sorted(present.keys() - self.tables.keys()):
            self._start_named(tasks, replace(pattern, table=present[key]), glob)
            log.info("watch.table-found", table=key, glob=glob)

    async def _discover(self, tasks: TaskGroup, glob: str) -> None:
        """Start to watch the new tables below a glob, and leave those that were dropped."""
        folder, _, pattern = glob.rpartition("/")
        try:
            below = self._buckets.table(folder)
            present = {name for name in await below.folders("") if fnmatchcase(name, pattern)}
        except AgentError as error:
            self._report_unreadable("watch.glob-unreadable", glob, glob, error)
            return
        self._unreadable.discard(glob)
        found = {each.uri.rpartition("/")[2] for each in self.tables.values() if each.glob == glob}
        for name in sorted(present | found):
            uri = f"{folder}/{name}"
            table = self.tables.get(uri)
            if not self._is_own(uri) or (table is not None and table.glob != glob):
                continue
            try:
                is_table = name in present and await self._is_table(table, below, name)
                if is_table:
                    require_canonical(uri)
            except (AgentError, ValueError) as error:
                self._report_unreadable("watch.folder-unreadable", glob, uri, error)
                continue
            self._unreadable.discard(uri)
            if table is not None:
                self._note_presence(table, is_table=is_table)
            elif is_table:
                self._start(tasks, uri, glob)
                log.info("watch.table-found", table=uri, glob=glob)

    async def _is_table(self, table: _Table | None, below: TableFiles, name: str) -> bool:
        if table is not None and table.watched is not None and table.trouble is None:
            return True  # its own looks read it
        return format_of(await folders_of(below, f"{name}/")) is not None

    @staticmethod
    def _note_presence(table: _Table, *, is_table: bool) -> None:
        if is_table:
            table.absent_since = None
        elif table.absent_since is None:
            table.absent_since = monotonic()
        elif monotonic() - table.absent_since >= ABSENT_SECONDS:
            table.is_dropped = True

    def _report_unreadable(self, event: str, glob: str, uri: str, error: Exception) -> None:
        if uri not in self._unreadable:
            log.warning(event, glob=glob, why=str(error), **({} if uri == glob else {"folder": uri}))
        self._unreadable.add(uri)

    async def _watch(self, table: _Table) -> None:
        while self._is_own(table.uri) and not table.is_dropped:
            began = monotonic()
            async with table.rounds:
                active = await self._look_or_log(table)
            await self._sleep(began, active=active)
        self._leave(table)

    async def _watch_named(self, table: _Table) -> None:
        while not table.is_dropped:
            began, reassigned = monotonic(), self._reassigned
            async with table.rounds:
                active = await self._look_or_log(table)
            await self._sleep(began, active=active)
            if table.trouble is None and not self._is_own(table.uri):
                self._report_not_allowed(table)
                with anyio.move_on_after(DISCOVERY_SECONDS):
                    await reassigned.wait()
        self._leave(table)

    def _report_not_allowed(self, table: _Table) -> None:
        if table.glob is None and not table.is_refused and not self._allows(table.uri):
            table.is_refused = True
            log.warning(
                "watch.not-allowed",
                table=table.uri,
                name=table.key,
                detail="allow doesn't cover it, so it is not watched",
            )

    async def _sleep(self, began: float, *, active: bool) -> None:
        period = self._settings.watch_seconds if active else self._settings.watch_idle_seconds
        await anyio.sleep(max(0.0, began + period - monotonic()))

    def _leave(self, table: _Table) -> None:
        del self.tables[table.key]
        if table.is_dropped:
            log.info("watch.table-dropped", table=table.uri, detail="its folders are absent")
        else:
            log.info("watch.table-left", table=table.uri)

    async def _look_or_log(self, table: _Table) -> bool:
        try:
            with guarded("a look at a table"):
                return await self._look(table)
        except Exception as error:
            if repr(error) != table.trouble:
                log.exception(
                    "watch.table-failed", table=table.uri, detail="the watcher begins with this table again"
                )
            table.trouble, table.watched = repr(error), None
            return False

    async def _look(self, table: _Table) -> bool:
        began = monotonic()
        try:
            if table.watched is None:
                table.watched = await table.follow()
            look = await table.watched.look()
            if isinstance(table.watched, CatalogFollower):
                table.uri, table.files = table.watched.uri or table.key, table.watched.files
        except (UnreadableTableError, Unreadable, MemoryError, RecursionError) as error:
            self._report_trouble(table, why_unreadable(error))
            if table.watched is not None and not table.watched.began:
                table.watched = None  # it may come back in another format
            return False
        if table.trouble is not None:
            log.info("watch.table-readable", table=table.uri)
            table.trouble = None
        self._report_problems(table, look.problems)
        await self._publish_seen(table, table.watched.format, look)
        if look.complete:
            table.looked_at = began
        return look.active

    async def _publish_seen(self, table: _Table, form: str, look: Look) -> None:
        commits = [each for each in look.seen if isinstance(each, ObservedCommit)]
        seen = [each for each in look.seen if not isinstance(each, ObservedCommit)]
        events = [event for each in seen for event in reports(table.uri, form, each, utc_now())]
        if events:
            for each in seen:
                log.debug("watch.seen", table=table.uri, what=type(each).__name__, instant=each.instant)
            await self._publish(events)
        if commits:
            await self._publish_commits(table, form, commits)

    async def _publish_commits(self, table: _Table, form: str, commits: list[ObservedCommit]) -> None:
        looked_at = float("-inf") if table.looked_at is None else table.looked_at
        left = looked_at + self._max_age - monotonic()
        if left > 0:
            events = [event for each in commits for event in reports(table.uri, form, each, utc_now())]
            with anyio.move_on_after(left):
                await self._publish(events)
                for each in commits:
                    log.debug("watch.seen", table=table.uri, what="ObservedCommit", version=each.version)
                return
        log.warning(
            "watch.commits-skipped",
            table=table.uri,
            versions=[each.version for each in commits[:10]],
            count=len(commits),
            detail="they may be older than writers that have them in their base; the format's own check finds a conflict",
        )

    @property
    def _max_age(self) -> float:
        return max(MAX_AGE_SECONDS, 3 * self._settings.watch_idle_seconds)

    def _report_trouble(self, table: _Table, why: str) -> None:
        if table.trouble is None:
            log.warning("watch.table-unreadable", table=table.uri, why=why, detail="the watcher tries again")
        table.trouble = why

    def _report_problems(self, table: _Table, problems: Sequence[tuple[str, str]]) -> None:
        for path, why in problems:
            if (path, why) not in table.problems:
                log.warning("watch.file-unreadable", table=table.uri, file=path, why=why)
        table.problems = set(problems)


SPACE = UUID("5d4c1bd6-0f2e-5c1a-9a57-6f6e1c0f8a33")
"""The namespace of the ids. It never changes."""
HEARTBEAT_SECONDS = 60.0
"""In the intent of an observed transaction: Hudi's own interval. After three of them without a sign, its outcome is unknown."""


def reports(table: str, form: str, seen: Seen, at: datetime) -> Iterator[events.WriterEventUnion]:
    """The events that report what was seen of a table of this format."""
    name = f"{form}:{seen.version if isinstance(seen, ObservedCommit) else seen.instant}"
    common: dict[str, Any] = {"table": table, "transaction": name, "writer": name, "at": at}
    match seen:
        case ObservedCommit():
            yield _intent(common, "deleted-file")
            yield from _completion(common, seen.version, seen)
        case Opened(rule=rule):
            yield _intent(common, rule)
        case Touched(markers=markers):
            for part in events.event_chunks(markers):
                yield events.MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
        case Alive(sign=sign):
            seq = max(0, round(sign * 1000))
            yield events.WriterHeartbeat(**common, event_id=_id(table, name, f"alive {seq}"), seq=seq)
        case Completed():
            yield from _completion(common, seen.instant, seen)
        case Ended(reason=reason):
            yield events.TransactionAbandoned(**common, event_id=_id(table, name, "ended"), reason=reason)
        case _:
            assert_never(seen)


def _intent(common: dict[str, Any], rule: events.ConflictRule) -> events.CommitIntent:
    return events.CommitIntent(
        **common,
        event_id=_id(common["table"], common["transaction"], "opened"),
        observed=True,
        conflict_rule=rule,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    )


def _completion(
    common: dict[str, Any], version: str, seen: ObservedCommit | Completed
) -> Iterator[events.WriterEventUnion]:
    table, name, maker = common["table"], common["transaction"], seen.made_by
    *before, last = list(events.event_chunks(seen.markers)) or [()]
    for part in before:
        yield events.MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
    yield events.CommitCompleted(
        **common,
        event_id=_id(table, name, "completed"),
        version=version,
        markers=last,
        engine=maker.engine,
        user=maker.user,
        job=maker.job,
        application_id=maker.application,
    )


def _marker_id(table: str, name: str, markers: tuple[events.Marker, ...]) -> str:
    places = [[each.partition, each.file_group, each.operation] for each in markers]
    return _id(table, name, f"touched {json.dumps(places)}")


def _id(table: str, name: str, what: str) -> str:
    return uuid5(SPACE, f"{table}\n{name}\n{what}").hex
