"""Follows one Delta table, and reads its history for `assess`.

The partition columns come from the newest checksum file, a commit that has them, or a checkpoint.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import NumberedFollower
from lakewarden.agent.watching.reading import AT_ONCE, UNREADABLE, Reading, read_in_order
from lakewarden.handlers.assessment import Lack
from lakewarden.handlers.delta import log
from lakewarden.handlers.delta.checkpoint import read_checkpoint
from lakewarden.handlers.observations import File, ObservedCommit, UnknownVersion, UnreadableCommit

MAX_COMMITS_BACK = 50
"""Commits that are read in search of the table's metadata, if there is no checksum file."""
LOG_CHUNK = 1_000
"""Versions of the log that are listed at once, where the store's listing can begin anywhere."""


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
        newest, _ = await _newest(self._files)
        self._layout = await find_layout(self._files, newest)
        return newest


async def _newest(files: TableFiles) -> tuple[int, int]:
    """Find the newest version of the log, and the newest that a file names. Raises `UnreadableTableError` if there is none."""
    hint = 0
    with suppress(AbsentFileError):
        hint = log.checkpoint_version(await files.read(log.LAST_CHECKPOINT))
    for since in {hint: None, 0: None}:  # the hint may be of another table, which was there before
        listed = await files.below(log.LOG_FOLDER, log.before(since))
        newest = log.newest_version(listed)
        if newest is not None:
            return newest, max(hint, log.newest_named(listed))
    raise UnreadableTableError(f"{log.LOG_FOLDER} has no commit and no checkpoint")


async def find_layout(files: TableFiles, version: int) -> log.PartitionLayout:
    """Find the table's layout as of a version, in its checksum, commits or a checkpoint. Raises `UnreadableTableError`."""
    with suppress(AbsentFileError):
        stated = log.read_checksum(await files.read(log.checksum_path(version)))
        if stated is not None and stated.unknown is None:
            return stated
    found, each, has_gap = None, version, False
    for each in range(version, max(-1, version - MAX_COMMITS_BACK), -1):
        try:
            found = log.layout_of(log.actions_of(await files.read(log.commit_path(each))))
        except UnknownVersion:
            raise
        except AbsentFileError:
            has_gap = True
        except UnreadableCommit:
            continue
        if found is not None:
            break
    if found is not None and not has_gap:
        return found
    # No commit after a checkpoint that was there has changed the metadata.
    parts = log.checkpoint_of(await files.below(log.LOG_FOLDER, log.before(each)), version)
    try:
        layouts = [read_checkpoint(await files.read(path)) for path in parts]
    except UnknownVersion:
        raise
    except UnreadableCommit as error:
        if found is None:
            why = f"the table's metadata is in a checkpoint that can't be read: {error}"
            raise UnreadableTableError(why) from error
        layouts = []
    for layout in (*layouts, found):
        if layout is not None:
            return layout
    raise UnreadableTableError(
        f"the table's metadata is in none of its last {MAX_COMMITS_BACK} commits, nor in a checkpoint of them; a commit with a "
        "checksum file (Delta Lake on Spark writes one), a checkpoint, or the next ALTER TABLE makes it readable"
    )


async def read_past(files: TableFiles, reading: Reading) -> None:
    """Read the table's history."""
    newest, named = await _newest(files)
    reading.expect(named, newest, "commit")
    layout, reading.reached = await _layout(files, newest), newest + 1

    async def use(file: File, body: bytes | Exception) -> bool:
        nonlocal layout
        version = log.version_of(file.path)
        assert version is not None
        reading.reach(version, "commit")
        try:
            if isinstance(body, Exception):
                raise body
            actions = log.actions_of(body)
            own = log.layout_of(actions)
            spelling = own or layout or log.layout_of_values(actions)
            found = log.past_commit(version, actions, spelling, file.modified)
        except UNREADABLE as error:
            return reading.fail(f"commit {version}", error)
        reading.files |= dict.fromkeys(log.change_files(actions), -1)
        if not reading.add(found):
            return False
        if own is not None and version:
            with suppress(UnknownVersion):  # of before an upgrade, maybe a preview's
                layout = await _layout(files, version - 1)
        return True

    listed = _commits(files, newest)
    if await read_in_order(listed, lambda each: files.read(each.path), use, AT_ONCE) and reading.reached:
        reading.lacks(f"commits before {reading.reached}", "the table's log has been cleaned", Lack.BEYOND)


async def _commits(files: TableFiles, newest: int) -> AsyncIterator[File]:
    """Yield the commits of the log, the newest first, listed chunk by chunk where the store's listing seeks."""
    top, low = newest, max(0, newest - LOG_CHUNK + 1) if files.seeks else 0
    while top >= 0:
        found: dict[int, File] = {}
        async for page in files.pages(log.LOG_FOLDER, log.before(low)):
            for path, file in page.items():
                version = log.version_of(path)
                if version is not None and low <= version <= top and path == log.commit_path(version):
                    found[version] = file
            if files.seeks and next(reversed(page)) >= log.before(top + 1):
                break
        is_whole = len(found) == top - low + 1
        for version in sorted(found, reverse=True):
            yield found[version]
        # After a gap, the rest is listed from its beginning: the log is cleaned or damaged.
        top, low = low - 1, max(0, low - LOG_CHUNK) if is_whole else 0


async def _layout(files: TableFiles, version: int) -> log.PartitionLayout | None:
    """The partition columns as of a version; None: they can't be found. Raises `UnknownVersion`."""
    try:
        return await find_layout(files, version)
    except UnknownVersion:
        raise
    except UNREADABLE:
        return None
