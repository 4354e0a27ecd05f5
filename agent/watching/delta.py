"""Follows one Delta table. The partition columns come from the newest checksum file, or from a commit that has them."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.numbered import NumberedFollower
from lakewarden.handlers.delta.log import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    PartitionLayout,
    actions_of,
    before,
    checkpoint_version,
    checksum_path,
    commit_path,
    foreign_commit,
    layout_of,
    newest_version,
    read_checksum,
)
from lakewarden.handlers.observations import File, ObservedCommit

MAX_COMMITS_BACK = 50
"""Commits that are read in search of the table's metadata, if there is no checksum file."""


class DeltaFollower(NumberedFollower):
    """One Delta table."""

    format = "delta"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._layout = PartitionLayout(())

    def _path(self, number: int) -> str:
        return commit_path(number)

    async def _listed(self, since: int) -> Mapping[str, File]:
        return await self._files.since(LOG_FOLDER, before(since))

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        return newest_version(listed)

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:
        actions = actions_of(body)
        layout = layout_of(actions) or self._layout
        found = foreign_commit(number, actions, layout)
        self._layout = layout
        return [] if found is None else [found]

    async def _start(self) -> int:
        try:
            first = checkpoint_version(await self._files.read(LAST_CHECKPOINT))
        except AbsentFileError:
            first = 0
        newest = self._newest(await self._listed(first))
        if newest is None and first:  # the hint is of another table, which was there before
            newest = self._newest(await self._listed(0))
        if newest is None:
            raise UnreadableTableError(f"{LOG_FOLDER} has no commit and no checkpoint")
        self._layout = await find_layout(self._files, newest)
        return newest


async def find_layout(files: TableFiles, version: int) -> PartitionLayout:
    """Find the table's layout as of a version. Raises `UnreadableTableError`."""
    try:
        found = read_checksum(await files.read(checksum_path(version)))
        if found is not None:
            return found
    except AbsentFileError:
        pass
    for each in range(version, max(-1, version - MAX_COMMITS_BACK), -1):
        try:
            found = layout_of(actions_of(await files.read(commit_path(each))))
        except AbsentFileError:
            continue
        if found is not None:
            return found
    raise UnreadableTableError(
        "the table's metadata is in a Parquet checkpoint only, which the watcher doesn't read; a commit with a checksum file "
        "(Delta Lake on Spark writes one), or the next ALTER TABLE, makes it readable"
    )
