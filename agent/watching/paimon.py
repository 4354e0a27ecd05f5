"""Follows one Paimon table. A foreign snapshot costs its list of manifests, its manifests, and once the table's schema."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.agent.watching.files import TableFiles, UnreadableTableError
from lakewarden.agent.watching.numbered import NumberedFollower
from lakewarden.handlers.hudi.watching import File
from lakewarden.handlers.observations import ObservedCommit
from lakewarden.handlers.paimon.snapshots import (
    SNAPSHOT_FOLDER,
    TableLayout,
    foreign_snapshot,
    manifests_of,
    newest_snapshot,
    read_schema,
    read_snapshot,
    schema_path,
    snapshot_path,
)


class PaimonFollower(NumberedFollower):
    """One Paimon table."""

    format = "paimon"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._layouts: dict[int, TableLayout] = {}

    def _path(self, number: int) -> str:
        return snapshot_path(number)

    async def _listed(self, since: int) -> Mapping[str, File]:  # noqa: ARG002 - their order by number isn't that by name
        return await self._files.folder(SNAPSHOT_FOLDER)

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        return newest_snapshot(listed)

    async def _start(self) -> int:
        self._layouts.clear()
        newest = self._newest(await self._listed(0))
        if newest is None:
            raise UnreadableTableError(f"{SNAPSHOT_FOLDER} has no snapshot")
        return newest

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:
        snapshot = read_snapshot(body)
        if snapshot.is_gates:
            return []
        layout = self._layouts.get(snapshot.schema)
        if layout is None:
            layout = read_schema(await self._files.read(schema_path(snapshot.schema)))
            self._layouts[snapshot.schema] = layout
        lists = manifests_of(await self._files.read(snapshot.changes))
        found = foreign_snapshot(number, [await self._files.read(each) for each in lists], layout)
        return [] if found is None else [found]
