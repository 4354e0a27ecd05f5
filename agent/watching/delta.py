"""Follows one Delta table. The partition columns come from the newest checksum file, or from a commit that has them."""

from collections.abc import Mapping
from contextlib import suppress

from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import NumberedFollower
from lakewarden.handlers.delta import log
from lakewarden.handlers.observations import File, ObservedCommit, UnknownVersion, UnreadableCommit

MAX_COMMITS_BACK = 50
"""Commits that are read in search of the table's metadata, if there is no checksum file."""


class DeltaFollower(NumberedFollower):
    """One Delta table."""

    format = "delta"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._layout = log.PartitionLayout(())

    def _path(self, number: int) -> str:
        return log.commit_path(number)

    async def _listed(self, since: int) -> Mapping[str, File]:
        return await self._files.below(log.LOG_FOLDER, log.before(since))

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        return log.newest_version(listed)

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:
        actions = log.actions_of(body)
        layout = log.layout_of(actions) or self._layout
        found = log.foreign_commit(number, actions, layout)
        self._layout = layout
        return [] if found is None else [found]

    async def _start(self) -> int:
        newest = await newest_commit(self._files)
        self._layout = await find_layout(self._files, newest)
        return newest


async def newest_commit(files: TableFiles) -> int:
    """Find the newest version of the log. Raises `UnreadableTableError` if it has none."""
    first = 0
    with suppress(AbsentFileError):
        first = log.checkpoint_version(await files.read(log.LAST_CHECKPOINT))
    for since in {first: None, 0: None}:  # the hint may be of another table, which was there before
        newest = log.newest_version(await files.below(log.LOG_FOLDER, log.before(since)))
        if newest is not None:
            return newest
    raise UnreadableTableError(f"{log.LOG_FOLDER} has no commit and no checkpoint")


async def find_layout(files: TableFiles, version: int) -> log.PartitionLayout:
    """Find the table's layout as of a version. Raises `UnreadableTableError`."""
    try:
        found = log.read_checksum(await files.read(log.checksum_path(version)))
        if found is not None and found.unknown is None:
            return found
    except AbsentFileError:
        pass
    for each in range(version, max(-1, version - MAX_COMMITS_BACK), -1):
        try:
            found = log.layout_of(log.actions_of(await files.read(log.commit_path(each))))
        except UnknownVersion:
            raise
        except (AbsentFileError, UnreadableCommit):
            continue
        if found is not None:
            return found
    raise UnreadableTableError(
        "the table's metadata is in a Parquet checkpoint only, which the watcher doesn't read; a commit with a checksum file "
        "(Delta Lake on Spark writes one), or the next ALTER TABLE, makes it readable"
    )
