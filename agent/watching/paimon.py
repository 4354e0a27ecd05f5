"""Follows one Paimon table, and reads its history for `assess`.

A foreign snapshot costs its list of manifests, its manifests, and once the table's schema. In an append table with deletion
vectors, it also costs the snapshot before, and if the vectors have changed, those of both.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from lakewarden.agent.watching.files import AbsentFileError, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import NumberedFollower, piece_of
from lakewarden.agent.watching.reading import (
    AT_ONCE_WITH_MANIFESTS,
    UNREADABLE,
    Found,
    Reading,
    each_of,
    read_in_order,
)
from lakewarden.handlers.assessment import Lack, Unread
from lakewarden.handlers.observations import (
    File,
    ObservedCommit,
    Piece,
    Place,
    UnreadableCommit,
    content_of,
)
from lakewarden.handlers.paimon import snapshots
from lakewarden.handlers.unreadable import MAX_SIZE, number as number_of


class PaimonFollower(NumberedFollower):
    """One Paimon table."""

    format = "paimon"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._layouts: dict[int, snapshots.TableLayout] = {}

    def _path(self, number: int) -> str:
        return snapshots.snapshot_path(number)

    async def _listed(self, since: int) -> Mapping[str, File]:  # noqa: ARG002 - their order by number isn't that by name
        return await self._files.folder(snapshots.SNAPSHOT_FOLDER)

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        return snapshots.newest_snapshot(listed)

    async def _start(self) -> int:
        self._layouts.clear()
        newest = self._newest(await self._listed(0))
        if newest is None:
            raise UnreadableTableError(f"{snapshots.SNAPSHOT_FOLDER} has no snapshot")
        return newest

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:
        snapshot = snapshots.read_snapshot(body)
        if snapshot.is_gates:
            return []
        layout, manifests = await changes_read(self._files, snapshot, self._layouts)
        vectors: set[Place] | UnreadableCommit = set()
        if not layout.has_primary_key:
            try:
                vectors = await self._changed_vectors(number, snapshot, layout)
            except UnreadableCommit as error:
                vectors = error
        found = snapshots.foreign_snapshot(number, manifests, layout, vectors, snapshot.made_by)
        return [] if found is None else [found]

    async def _changed_vectors(
        self, number: int, snapshot: snapshots.Snapshot, layout: snapshots.TableLayout
    ) -> set[Place]:
        """Compare with the snapshot before. If that has expired, no change is known, as without a watcher."""
        if snapshot.indexes is None:
            return set()
        try:
            before = snapshots.read_snapshot(
                await self._files.read(snapshots.snapshot_path(number - 1))
            ).indexes
            if before == snapshot.indexes:
                return set()
            old = {} if before is None else snapshots.deletion_vectors(await self._files.read(before), layout)
        except AbsentFileError:
            return set()
        now = content_of(await piece_of(self._files, snapshot.indexes))
        return snapshots.changed_vectors(old, snapshots.deletion_vectors(now, layout))


async def changes_read(
    files: TableFiles, snapshot: snapshots.Snapshot, layouts: dict[int, snapshots.TableLayout]
) -> tuple[snapshots.TableLayout, list[Piece]]:
    """Read the manifests of a snapshot's own changes, and the table's layout, unless `layouts` has it."""
    layout = layouts.get(snapshot.schema)
    if layout is None:
        schema = content_of(await piece_of(files, snapshots.schema_path(snapshot.schema)))
        layout = layouts[snapshot.schema] = snapshots.read_schema(schema)
    lists = snapshots.manifests_of(content_of(await piece_of(files, snapshot.changes)))
    return layout, [await piece_of(files, each) for each in lists]


async def read_past(files: TableFiles, reading: Reading) -> None:
    """Read the table's history."""
    listed: dict[int, File] = {}
    async for page in files.pages(snapshots.SNAPSHOT_FOLDER):
        numbers = {snapshots.newest_snapshot([path]): file for path, file in page.items()}
        listed |= {number: file for number, file in numbers.items() if number is not None}
    if not listed:
        raise UnreadableTableError(f"{snapshots.SNAPSHOT_FOLDER} has no snapshot")
    with suppress(UnreadableTableError):
        named = number_of(await files.read(snapshots.LATEST), MAX_SIZE)
        reading.expect(named, max(listed), "snapshot")
    layouts: dict[int, snapshots.TableLayout] = {}

    async def read(number: int) -> tuple[Found, list[str]]:
        snapshot = snapshots.read_snapshot(await files.read(listed[number].path))
        layout, manifests = await changes_read(files, snapshot, layouts)
        commit, added = snapshots.past_snapshot(number, snapshot, manifests, layout)
        changelogs, unread = await _changelog_files(files, number, snapshot, layouts)
        stored, unread = listed[number].modified, (*commit.unread, *unread)
        return (replace(commit, commit=snapshot.commit, stored=stored, unread=unread), added), changelogs

    async def use(number: int, result: tuple[Found, list[str]] | Exception) -> bool:
        reading.reach(number, "snapshot")
        if isinstance(result, Exception):
            return reading.fail(f"snapshot {number}", result)
        found, changelogs = result
        reading.files |= dict.fromkeys(changelogs, -1)
        return reading.add(found)

    newest_first = each_of(sorted(listed, reverse=True))
    is_whole = await read_in_order(newest_first, read, use, AT_ONCE_WITH_MANIFESTS)
    if is_whole and reading.reached != 1:
        reading.lacks(f"snapshots before {reading.reached}", "they have expired", Lack.BEYOND)
    if any(each.is_elsewhere for each in layouts.values()):
        why = "the option data-file.external-paths names other folders, which are not listed"
        reading.lacks("data files", why, Lack.PLACES)
    if await files.has_files("branch"):
        reading.lacks("the table's branches", "only the main branch is read", Lack.NAMES)
    if await files.has_files("changelog"):
        reading.lacks("changelogs of expired snapshots", "the folder changelog is not read", Lack.NAMES)


async def _changelog_files(
    files: TableFiles,
    number: int,
    snapshot: snapshots.Snapshot,
    layouts: dict[int, snapshots.TableLayout],
) -> tuple[list[str], tuple[Unread, ...]]:
    """The changelog files that a snapshot names, and what of them can't be read."""
    if snapshot.changelogs is None:
        return [], ()
    try:
        layout, manifests = await changes_read(files, replace(snapshot, changes=snapshot.changelogs), layouts)
    except UNREADABLE as error:
        what = f"the changelog files of snapshot {number}"
        return [], (Unread(what, str(error), frozenset({Lack.NAMES}), number),)
    return snapshots.changelog_files(number, manifests, layout)
