"""Follows one Iceberg table of a Hadoop catalog.

A commit costs the new metadata file; a foreign one also its list of manifests, and those that it has added.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.agent.watching.files import TableFiles, UnreadableTableError
from lakewarden.agent.watching.numbered import NumberedFollower
from lakewarden.handlers.iceberg.metadata import (
    METADATA_FOLDER,
    Snapshot,
    TableMetadata,
    foreign_snapshot,
    has_other_catalog,
    manifests_of,
    newest_version,
    read_metadata,
    relative_path,
    version_path,
)
from lakewarden.handlers.observations import File, ObservedCommit


class IcebergFollower(NumberedFollower):
    """One Iceberg table."""

    format = "iceberg"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._gzipped = False
        self._newest_snapshot: int | None = None

    def _path(self, number: int) -> str:
        return version_path(number, gzipped=self._gzipped)

    async def _listed(self, since: int) -> Mapping[str, File]:  # noqa: ARG002 - their order by number isn't that by name
        return await self._files.folder(METADATA_FOLDER)

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        found = newest_version(listed)
        return None if found is None else found[0]

    async def _start(self) -> int:
        listed = await self._listed(0)
        found = newest_version(listed)
        if found is None and has_other_catalog(listed):
            raise UnreadableTableError(
                "only the table's catalog knows which of its metadata files is committed; the watcher follows tables of a Hadoop "
                "catalog (metadata/v<N>.metadata.json)"
            )
        if found is None:
            raise UnreadableTableError(f"{METADATA_FOLDER} has no metadata file")
        number, self._gzipped = found
        self._newest_snapshot = read_metadata(await self._files.read(self._path(number))).newest
        return number

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:  # noqa: ARG002 - snapshots have names of their own
        metadata = read_metadata(body)
        found = [
            commit
            for snapshot in metadata.since(self._newest_snapshot)
            if not snapshot.is_gates and (commit := await self._commit(snapshot, metadata)) is not None
        ]
        self._newest_snapshot = metadata.newest
        return found

    async def _commit(self, snapshot: Snapshot, metadata: TableMetadata) -> ObservedCommit | None:
        listed = await self._files.read(relative_path(snapshot.manifests, metadata.location))
        manifests = [
            (each.spec, await self._files.read(relative_path(each.path, metadata.location)))
            for each in manifests_of(listed, snapshot.id)
        ]
        return foreign_snapshot(snapshot, manifests, metadata)
