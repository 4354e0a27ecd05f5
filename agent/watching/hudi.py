"""Follows one Hudi table: passes what a look finds to `handlers/hudi/watching.py`. And reads its history for `assess`.

A look lists the timeline; if an instant is pending, also the markers and, every `HEARTBEAT_SECONDS`, the heartbeats; and reads
what has changed. A table whose properties change (an upgrade, or another table in its place) is watched from the start.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from lakewarden.agent.clock import monotonic
from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import RECHECK_SECONDS, Look
from lakewarden.agent.watching.reading import (
    AT_ONCE,
    AT_ONCE_WITH_MANIFESTS,
    MAX_COMMITS,
    UNREADABLE,
    Found,
    Reading,
    each_of,
    read_in_order,
)
from lakewarden.handlers.assessment import Lack, LostTry
from lakewarden.handlers.hudi.clock import MAX_ZONE_SECONDS, Clock
from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import (
    HEARTBEAT_FOLDER,
    MARKER_FOLDER,
    PROPERTIES,
    Instant,
    instants,
    seconds_of,
    time_of,
)
from lakewarden.handlers.hudi.watching import Round, WatchedTable, past_commit, rolled_back
from lakewarden.handlers.observations import File

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Between two listings of a table's heartbeats. Hudi's writers send one a minute; a watcher reports one every 15 s at most."""
DEAD_SECONDS = 600.0
"""A pending instant whose heartbeat is so old has failed: its interval is a minute by default."""
SILENT_SECONDS = 86_400.0
"""The same of one without a heartbeat: writers have none with the policy EAGER."""


class HudiFollower:
    """One Hudi table."""

    format = "hudi"

    def __init__(self, uri: str, files: TableFiles, grace: float) -> None:
        self._uri, self._files, self._grace = uri, files, grace
        self._watched: WatchedTable | None = None
        self._logged = False
        self._properties_read = 0.0
        self._heartbeats: dict[str, File] = {}
        self._heartbeats_listed: float | None = None

    @property
    def began(self) -> bool:
        return self._watched is not None and self._watched.began

    async def look(self) -> Look:
        watched = await self._table()
        is_first = not watched.began
        timeline = await self._files.folder(watched.table.timeline)
        timeline.pop(PROPERTIES, None)
        active: dict[str, File] = {}
        if watched.is_active(timeline):
            active = await self._files.below(MARKER_FOLDER)
            active |= await self._list_heartbeats()
        else:
            self._heartbeats_listed = None
        bodies, unread = await self._read(watched.wanted(timeline, active))
        seen = watched.advance(Round(monotonic(), timeline, active, bodies))
        if is_first:
            self._log_start(watched.table)  # what begins from now on is reported
        return Look(bool(watched.pending), seen, problems=watched.problems + unread)

    async def _table(self) -> WatchedTable:
        now = monotonic()
        if self._watched is None or now - self._properties_read >= RECHECK_SECONDS:
            found = read_properties(await self._files.read(PROPERTIES))
            self._properties_read = now
            if self._watched is None or self._watched.table != found:
                self._watched = WatchedTable(found, self._grace)
        return self._watched

    async def _list_heartbeats(self) -> dict[str, File]:
        """The heartbeat files, as they were at most `HEARTBEAT_SECONDS` ago."""
        now = monotonic()
        if self._heartbeats_listed is None or now - self._heartbeats_listed >= HEARTBEAT_SECONDS:
            self._heartbeats = await self._files.below(HEARTBEAT_FOLDER)
            self._heartbeats_listed = now
        return self._heartbeats

    async def _read(self, paths: list[str]) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
        """The files that could be read, and why the others could not. These are wanted again in the next round."""
        bodies: dict[str, bytes] = {}
        unread: list[tuple[str, str]] = []
        for path in paths:
            try:
                bodies[path] = await self._files.read(path)
            except AbsentFileError as error:
                # Hudi removes markers and files of the timeline at any time, but never a table's properties.
                if path == PROPERTIES:
                    unread.append((path, str(error)))
            except UnreadableTableError as error:
                unread.append((path, str(error)))
        return bodies, unread

    def _log_start(self, found: HudiTable) -> None:
        log.info(
            "watch.table-changed" if self._logged else "watch.table",
            table=self._uri,
            format=self.format,
            version=found.version,
            layout=found.layout,
            kind=found.kind,
        )
        self._logged = True


async def read_past(files: TableFiles, reading: Reading) -> None:
    """Read the table's history."""
    table = read_properties(await files.read(PROPERTIES))
    listed = await _timeline(files, table, reading)
    found = instants(listed, table.layout)
    timed = [each for each in found if seconds_of(each.time) is not None]
    if odd := sum(each.writes and seconds_of(each.time) is None for each in found):
        reading.lacks(f"{odd} instants", "their names are no times", Lack.COMMITS)
    clock = Clock.of({name: each.modified for name, each in listed.items()}, timed, table)
    reading.unread += clock.unread
    completed = sorted((each for each in timed if each.state == "completed" and each.writes), key=clock.ended)
    ends = [clock.ended(each) for each in completed]
    places = {_completed_path(table, each): at for at, each in enumerate(completed)}
    is_endless = clock.is_copied and table.layout == 1

    async def read(file: File) -> Found:
        instant = completed[places[file.path]]
        commit = past_commit(instant, read_metadata(await files.read(file.path)), None, clock.ended(instant))
        began = clock.started(instant, is_service=commit.is_service)
        commit = replace(commit, began=began, is_known=began is not None and not is_endless)
        if not clock.by_names:
            return commit, []
        base = bisect_right(ends, clock.began(instant.time) or 0.0) - 1
        return replace(commit, number=places[file.path], base=base), []

    async def use(file: File, result: Found | Exception) -> bool:
        if isinstance(result, Exception):
            return reading.fail(f"instant {completed[places[file.path]].time}", result)
        return reading.add(result)

    newest_first = each_of(listed[each.files[-1].name] for each in reversed(completed))
    is_whole = await read_in_order(newest_first, read, use, AT_ONCE)
    async for page in files.pages(table.archive):
        if is_whole and page:
            first = found[0].time if found else "now"
            reading.lacks(f"instants before {first}", "Hudi has archived them", Lack.BEYOND)
        break
    since = min((each.began for each in reading.commits if each.began is not None), default=0.0)
    late = [each for each in timed if (clock.began(each.time) or 0.0) >= since]
    await _read_rollbacks(files, reading, table, late, clock)
    beats = {
        path.rpartition("/")[2]: each.modified for path, each in (await files.below(HEARTBEAT_FOLDER)).items()
    }
    for each in late:
        if each.completes_as == "restore":
            why = "the commits that it has rolled back are not read"
            reading.lacks(f"restore {each.time}", why, Lack.COMMITS, Lack.LOSSES)
        if not each.writes or each.state == "completed" or await _is_service(files, table, each):
            continue
        beat = beats.get(each.time)
        last = max(beat or 0.0, *(clock.modified[file.name] for file in each.files))
        if reading.now - last > (SILENT_SECONDS if beat is None else DEAD_SECONDS):
            reading.lost.append(LostTry(each.time, clock.began(each.time) or 0.0, frozenset()))
        elif beat is None and reading.now - last > DEAD_SECONDS:
            why = "it is pending, and has no heartbeat that would say whether it runs"
            reading.lacks(f"instant {each.time}", why, Lack.LOSSES)


async def _is_service(files: TableFiles, table: HudiTable, instant: Instant) -> bool:
    """Whether a pending instant is of a table service, whose plan may wait: in layout 1, only a clustering's plan says so."""
    if instant.is_table_service or instant.action != "replacecommit":
        return instant.is_table_service
    with suppress(*UNREADABLE):
        plan = read_metadata(await files.read(table.timeline + instant.files[0].name))
        return plan.operation == "CLUSTER"
    return False


async def _timeline(files: TableFiles, table: HudiTable, reading: Reading) -> dict[str, File]:
    """List the timeline, where the store seeks from before the period only, if the table's newest write is in it."""
    since = "0"
    if files.seeks:
        since = time_of(reading.now - 2 * reading.span - 2 * MAX_ZONE_SECONDS)
    listed: dict[str, File] = {}
    for after in {since: None, "0": None}:  # other folders and files begin with no digit
        listed.clear()
        async for page in files.pages_of_folder(table.timeline, table.timeline + after):
            listed |= {path.rpartition("/")[2]: each for path, each in page.items()}
            if files.seeks and page and next(reversed(page)) > table.timeline + ":":
                break
        writes = [each.modified for name, each in listed.items() if name.endswith("commit")]
        if max(writes, default=0.0) > reading.now - reading.span:
            break
    return listed


async def _read_rollbacks(
    files: TableFiles, reading: Reading, table: HudiTable, late: Sequence[Instant], clock: Clock
) -> None:
    """Add the instants of the period that were rolled back."""
    since = clock.began(late[0].time) if late else None
    rollbacks = [each for each in late if each.completes_as == "rollback" and each.state == "completed"]

    async def read(rollback: Instant) -> tuple[list[str], frozenset[str]]:
        return rolled_back(await files.read(_completed_path(table, rollback)))

    async def use(rollback: Instant, result: tuple[list[str], frozenset[str]] | Exception) -> bool:
        if isinstance(result, Exception):
            reading.lacks(f"rollback {rollback.time}", str(result), Lack.LOSSES)
            return True
        names, partitions = result
        for name in names:
            began = clock.began(name)
            if began is not None and since is not None and began >= since:
                reading.lost.append(LostTry(name, began, partitions, clock.began(rollback.time)))
        return True

    await read_in_order(each_of(rollbacks[-MAX_COMMITS:]), read, use, AT_ONCE_WITH_MANIFESTS)


def _completed_path(table: HudiTable, instant: Instant) -> str:
    return table.timeline + instant.files[-1].name
