"""Followers of Iceberg tables, and their history for `assess`.

Tables of a Hadoop catalog are read from their files, all others through their catalog.

A foreign commit costs its list of manifests, and those that it has added; in a Hadoop catalog also the new metadata file.

What `CatalogFollower` does with the catalog's answer:

| the answer | the look |
| --- | --- |
| as before | is over: it was one request |
| the first one, or the table has another UUID or location than before | reports nothing: it begins at the newest snapshot |
| has newer snapshots | reports the foreign ones, the oldest first |
| is older: the branch was set back, or a replica of the catalog is behind | reports nothing, and keeps its position |
| lacks snapshots since the last look | asks for all; if they aren't there, it logs once that the history is cut, and goes on |
| its location belongs to another agent | forgets its position |

An answer counts as seen when all its snapshots are read. For one that can't be read, the rules of `follower.py` apply: nothing
after it is reported until then.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalog import Catalog, CatalogAnswer, TableName
from lakewarden.agent.watching.catalogs import catalogs
from lakewarden.agent.watching.files import Buckets, TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import (
    ACTIVE_SECONDS,
    MAX_COMMITS,
    READ_ERRORS,
    Look,
    NumberedFollower,
    Patience,
    piece_of,
    problems_of,
)
from lakewarden.agent.watching.reading import (
    AT_ONCE_WITH_MANIFESTS,
    UNREADABLE,
    Found,
    Reading,
    each_of,
    read_in_order,
)
from lakewarden.events import canonical_table
from lakewarden.handlers.assessment import Lack
from lakewarden.handlers.iceberg import metadata as iceberg
from lakewarden.handlers.observations import (
    File,
    ObservedCommit,
    Piece,
    UnknownVersion,
    UnreadableCommit,
    content_of,
    unread_commit,
)
from lakewarden.handlers.unreadable import MAX_SIZE, number, why_unreadable

log = structlog.get_logger(__name__)


class IcebergFollower(NumberedFollower):
    """One Iceberg table of a Hadoop catalog."""

    format = "iceberg"

    def __init__(self, uri: str, files: TableFiles) -> None:
        super().__init__(uri, files)
        self._ending = iceberg.ENDING
        self._newest_snapshot: iceberg.IcebergSnapshot | None = None
        self._tried: list[iceberg.IcebergSnapshot] = []
        """The new snapshots of the metadata file that was read last."""

    def _path(self, number: int) -> str:
        return iceberg.version_path(number, self._ending)

    async def _listed(self, since: int) -> Mapping[str, File]:  # noqa: ARG002 - their order by number isn't that by name
        return await self._files.folder(iceberg.METADATA_FOLDER)

    def _newest(self, listed: Mapping[str, File]) -> int | None:
        return next((number for number, _ in iceberg.versions(listed)), None)

    async def _start(self) -> int:
        number, self._ending = (await _versions(self._files))[0]
        self._newest_snapshot = iceberg.read_metadata(await self._files.read(self._path(number))).newest
        return number

    async def _read(self, number: int, body: bytes) -> list[ObservedCommit]:  # noqa: ARG002 - snapshots have names of their own
        self._tried = []
        metadata = iceberg.read_metadata(body)
        self._tried, _ = metadata.since(self._newest_snapshot)
        found = [await _commit(each, metadata, self._files) for each in self._tried]
        self._newest_snapshot = metadata.newest
        return [each for each in found if each is not None]

    def _unreadable(self, number: int, why: str) -> list[ObservedCommit]:  # noqa: ARG002 - likewise
        """Without its metadata file, a commit's snapshot has no name. The next metadata file lists it, too."""
        found = [unread_commit(str(each.id), why) for each in self._tried]
        self._newest_snapshot = self._tried[-1] if self._tried else self._newest_snapshot
        return found


class CatalogFollower:
    """One Iceberg table that a catalog names. Its URI is its location."""

    format = "iceberg"

    def __init__(
        self, name: TableName, catalog: Catalog, buckets: Buckets, is_own: Callable[[str], bool]
    ) -> None:
        """`is_own`: whether this watcher watches the table with a URI."""
        self._name, self._catalog, self._buckets, self._is_own = name, catalog, buckets, is_own
        self.uri: str | None = None
        """As of the last answer."""
        self.files: TableFiles | None = None
        self.began = False
        """Whether its position is known. Without, another agent's watcher has the table, or no look has succeeded."""
        self._uuid: str | None = None
        self._answer: CatalogAnswer | None = None
        self._newest: iceberg.IcebergSnapshot | None = None
        self._patience = Patience()
        self._is_cut = False
        self._changed_at = float("-inf")

    async def look(self) -> Look:
        """Ask the catalog for the table, and read the snapshots since the last look."""
        now = monotonic()
        if self.began and self.uri is not None and not self._is_own(self.uri):
            log.info("watch.table-left", table=self.uri, name=str(self._name))
            self._forget()
        answer = await self._catalog.load(self._name, self._answer)
        if answer is self._answer:
            return Look(now - self._changed_at < ACTIVE_SECONDS)
        metadata = await metadata_in(answer, self._buckets)
        self._locate(metadata, answer.access)
        assert self.uri is not None
        if not self._is_own(self.uri):
            return Look(active=False)
        if not self.began:
            self._begin(answer, metadata)
            return Look(active=False)
        snapshots, is_whole = metadata.since(self._newest)
        if not is_whole and not answer.is_whole:
            answered = await self._catalog.load(self._name, None, whole=True)
            metadata = await metadata_in(answered, self._buckets)
            snapshots, is_whole = metadata.since(self._newest)
        if not is_whole:
            self._report_cut()
        return await self._read(answer, metadata, snapshots, now)

    def _forget(self) -> None:
        self.began, self._answer, self._newest = False, None, None

    def _locate(self, metadata: iceberg.TableMetadata, access: Mapping[str, str]) -> None:
        files = files_of(metadata.location, self._buckets, access)
        uri = canonical_table(metadata.location)
        if self.began and (uri, metadata.uuid) != (self.uri, self._uuid):
            self._warn("watch.position-lost", uri, why="the catalog has another table of this name")
            self._forget()
        self.uri, self.files, self._uuid = uri, files, metadata.uuid

    def _begin(self, answer: CatalogAnswer, metadata: iceberg.TableMetadata) -> None:
        self.began, self._answer, self._newest = True, answer, metadata.newest
        newest = None if metadata.newest is None else metadata.newest.id
        log.info("watch.table", table=self.uri, format=self.format, name=str(self._name), commit=newest)

    def _report_cut(self) -> None:
        if not self._is_cut:
            self._warn(
                "watch.history-cut",
                self.uri,
                detail="the catalog doesn't list all snapshots since the last look; those that it doesn't list are not reported; "
                "the format's own check finds a conflict",
            )
        self._is_cut = True

    async def _read(
        self,
        answer: CatalogAnswer,
        metadata: iceberg.TableMetadata,
        snapshots: list[iceberg.IcebergSnapshot],
        now: float,
    ) -> Look:
        assert self.files is not None
        found: list[ObservedCommit] = []
        problems: list[tuple[str, str]] = []
        is_complete = len(snapshots) <= MAX_COMMITS
        for each in snapshots[:MAX_COMMITS]:
            path = each.manifests or metadata.location
            try:
                commit = await _commit(each, metadata, self.files)
                problems += problems_of(path, [commit] if commit else ())
            except READ_ERRORS as error:
                why = why_unreadable(error)
                problems.append((path, why))
                if not self._patience.is_over(each.id, error, now):
                    is_complete = False
                    break
                commit = unread_commit(str(each.id), why)
            self._newest, self._changed_at = each, now
            if commit is not None:
                found.append(commit)
        if is_complete:
            self._answer = answer
        return Look(now - self._changed_at < ACTIVE_SECONDS, found, complete=is_complete, problems=problems)

    def _warn(self, event: str, uri: str | None, **fields: str) -> None:
        log.warning(event, table=uri, name=str(self._name), **fields)


async def _commit(
    snapshot: iceberg.IcebergSnapshot, metadata: iceberg.TableMetadata, files: TableFiles
) -> ObservedCommit | None:
    """What is to be reported of a snapshot, if it is foreign and has changed a file."""
    if snapshot.is_gates:
        return None
    return iceberg.foreign_snapshot(snapshot, await manifests_read(snapshot, metadata, files), metadata)


async def manifests_read(
    snapshot: iceberg.IcebergSnapshot, metadata: iceberg.TableMetadata, files: TableFiles
) -> list[tuple[int, Piece]]:
    """Read the manifests of a snapshot's own changes. Each comes with its partition spec. Raises `UnreadableCommit`."""

    async def read(path: str) -> Piece:
        try:
            return await piece_of(files, iceberg.relative_path(path, metadata.location))
        except UnreadableCommit as error:
            return error

    if not snapshot.manifests:
        raise UnreadableCommit("the snapshot has no list of manifests, as in tables of before 2019")
    listed = content_of(await read(snapshot.manifests))
    return [(each.spec, await read(each.path)) for each in iceberg.manifests_of(listed, snapshot.id)]


async def metadata_in(answer: CatalogAnswer, buckets: Buckets) -> iceberg.TableMetadata:
    """Return the metadata that a catalog has answered with, or read the file that it names."""
    if answer.metadata is not None:
        return iceberg.metadata_of(answer.metadata)
    folder, _, name = answer.pointer.rpartition("/")
    return iceberg.read_metadata(await files_of(folder, buckets, answer.access).read(name))


async def newest_metadata(files: TableFiles, reading: Reading) -> iceberg.TableMetadata:
    """Read the newest metadata of a table of a Hadoop catalog that can be read."""
    found = await _versions(files)
    with suppress(UnreadableTableError):
        reading.expect(number(await files.read(iceberg.HINT), MAX_SIZE), found[0][0], "metadata file")
    failed: list[Exception] = []
    for version, ending in found:
        try:
            return iceberg.read_metadata(await files.read(iceberg.version_path(version, ending)))
        except UnknownVersion:
            raise
        except UNREADABLE as error:
            failed.append(error)
            if not reading.fail(f"metadata file {version}", error):
                break
    raise failed[0]


async def _versions(files: TableFiles) -> list[tuple[int, str]]:
    listed = await files.folder(iceberg.METADATA_FOLDER)
    found = iceberg.versions(listed)
    if not found and iceberg.has_other_catalog(listed):
        raise UnreadableTableError(
            "only the table's catalog knows which of its metadata files is committed; name it by its catalog "
            "(catalog:namespace.table), as docs/watch.md says"
        )
    if not found:
        raise UnreadableTableError(f"{iceberg.METADATA_FOLDER} has no metadata file")
    return found


def files_of(location: str, buckets: Buckets, access: Mapping[str, str]) -> TableFiles:
    """Return the files below a location. `access`: the credentials that the catalog vends for them."""
    try:
        return buckets.table(canonical_table(location), access)
    except UnreadableTableError:
        raise
    except (AgentError, ValueError) as error:
        raise UnreadableTableError(f"the table's location can't be watched: {error}") from error


async def named_metadata(
    name: TableName, settings: Settings, buckets: Buckets
) -> tuple[iceberg.TableMetadata, TableFiles]:
    """Ask a catalog for the metadata and the files of a table. Raises `UnreadableTableError`."""
    found = catalogs(settings)
    try:
        if name.catalog not in found:
            raise UnreadableTableError(
                f"no catalog is called {name.catalog}; docs/watch.md says how it is configured"
            )
        answer = await found[name.catalog].load(name, None, whole=True)
        metadata = await metadata_in(answer, buckets)
        return metadata, files_of(metadata.location, buckets, answer.access)
    finally:
        for each in found.values():
            await each.close()


async def read_past(files: TableFiles, reading: Reading, metadata: iceberg.TableMetadata) -> None:
    """Read the table's history."""
    names = {each.manifests.rpartition("/")[2] for each in metadata.snapshots}
    written: dict[str, float] = {}
    """When each list of manifests was: after the snapshots before its own were published."""
    foreign: list[float] = []
    """When the lists were that the metadata doesn't name."""
    with suppress(UnreadableTableError):
        async for page in files.pages(iceberg.METADATA_FOLDER):
            found = {path.rpartition("/")[2]: each.modified for path, each in page.items()}
            written |= {name: found[name] for name in found.keys() & names}
            foreign += (at for name, at in found.items() if name.startswith("snap-") and name not in names)

    async def read(snapshot: iceberg.IcebergSnapshot) -> Found:
        manifests = await manifests_read(snapshot, metadata, files)
        commit, added = iceberg.past_snapshot(snapshot, manifests, metadata)
        return replace(commit, stored=written.get(snapshot.manifests.rpartition("/")[2])), added

    async def use(snapshot: iceberg.IcebergSnapshot, result: Found | Exception) -> bool:
        if isinstance(result, Exception):
            return reading.fail(f"snapshot {snapshot.id}", result)
        return reading.add(result)

    main = metadata.snapshots
    others = len(metadata.listed - {each.id for each in main})
    if not metadata.has_newest:
        reading.lacks("the newest snapshot", "the metadata lacks it, or it can't be read", Lack.COMMITS)
    is_whole = await read_in_order(each_of(main), read, use, AT_ONCE_WITH_MANIFESTS)
    is_cut = main and (main[-1].parent is not None or main[-1].age[0] > 1 + others or not metadata.has_first)
    if is_whole and is_cut:
        reading.lacks(f"snapshots before {main[-1].id}", "they have expired, or can't be read", Lack.BEYOND)
    if others:
        why = "they are of branches, staged or rolled back, and only the main branch is read"
        reading.lacks(f"{others} snapshots", why, Lack.NAMES)
    since = min((each.published for each in reading.commits), default=0.0)
    if newer := sum(at > since for at in foreign):
        why = "the metadata doesn't name them: they are of failed commits, or of another table in this folder"
        reading.lacks(f"{newer} lists of manifests", why, Lack.NAMES)
    if metadata.why_unsearchable is not None:
        reading.lacks("data files", metadata.why_unsearchable, Lack.PLACES)
