"""Follows one Hudi table: passes what a look finds to `handlers/hudi/watching.py`.

A look lists the timeline; if an instant is pending, also the markers and, every `HEARTBEAT_SECONDS`, the heartbeats; and reads
what has changed. A table whose properties change (an upgrade, or another table in its place) is watched from the start.
"""

import structlog

from lakewarden.agent.clock import monotonic
from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import RECHECK_SECONDS, Look
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import HEARTBEAT_FOLDER, MARKER_FOLDER, PROPERTIES
from lakewarden.handlers.hudi.watching import Round, WatchedTable
from lakewarden.handlers.observations import File

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Between two listings of a table's heartbeats. Hudi's writers send one a minute; a watcher reports one every 15 s at most."""


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
