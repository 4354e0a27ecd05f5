"""From what a Hudi table shows, round by round, to what a watcher reports of its writers.

The shell lists the timeline once a period, and while an instant is pending also the markers and heartbeats. It reads the files
that `wanted` names, and passes all of it to `advance`, which returns what to report. Nothing else changes the state.

| seen | reported |
| --- | --- |
| a write is requested | `Opened`, after `grace` seconds: by then the gate's own writers have announced their instants |
| a compaction or a clustering is inflight | `Opened`, with the file groups of its plan; a plan that waits is not reported |
| file groups in the inflight file, in markers | `Touched` |
| a newer time of modification on any of the instant's files | `Alive`, at most every `BEAT_SECONDS` |
| the completed file, and it can be read | `Completed`, with all file groups that it names |
| an instant is gone without having completed, in two rounds one after the other, and the table is still there | `Ended` |

Rules:

1. **No clock is compared with another one.** An instant is alive when the store's own time of modification of one of its files
   moves. How long it may be silent is the agent's business.
2. **The first round** is where a watcher begins. The writers of pending instants may have ended before, so each is reported when
   it moves. The last `MAX_REPEATED` commits are reported as completed: the agent ignores those that it doesn't know as open.
3. **No guess.** A completed file that is empty or can't be read completes nothing; it is read again in each round, for
   `UNREADABLE_SECONDS`. Then it counts as a commit that has written everything, as does one of whose file groups one can't be
   read. If the table is gone, nothing has ended; it may come back between the two requests of a round, so one round proves
   nothing. An instant that is gone and older than the whole timeline may have been archived: nothing is reported of its end,
   and the agent finds its outcome unknown.
4. What is reported depends on the table alone, so any number of watchers report the same.
5. A compaction permits appends beside it: its rule is `deleted-file`. A clustering doesn't permit updates of what it replaces.
"""

from collections.abc import Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lakewarden.events import ConflictRule, Marker
from lakewarden.events.codec import json_object
from lakewarden.handlers.assessment import Lack, PastCommit, Unread
from lakewarden.handlers.commit_label import HUDI_LABEL
from lakewarden.handlers.hudi.markers import (
    each_once,
    is_direct_marker,
    is_markers_file,
    parse_marker,
    read_markers_file,
)
from lakewarden.handlers.hudi.metadata import InstantMetadata, decode, read_metadata
from lakewarden.handlers.hudi.properties import HudiTable, read_properties
from lakewarden.handlers.hudi.timeline import (
    HEARTBEAT_FOLDER,
    MARKER_FOLDER,
    PROPERTIES,
    Instant,
    TimelineFile,
    UnreadableHudi,
    instants,
)
from lakewarden.handlers.maker import UNKNOWN_MAKER, Maker, of_hudi
from lakewarden.handlers.observations import EVERYTHING, UNREADABLE_SECONDS, File
from lakewarden.handlers.unreadable import reading

MAX_REPEATED = 10
"""Commits of the first round that are reported. A watcher that is restarted within so many commits misses none."""
BEAT_SECONDS = 15.0
"""Between two `Alive` of one instant. The agent waits for three minutes before an outcome is unknown."""
MAX_PENDING = 1_000
"""Pending instants per table, as many as the agent keeps open. The oldest ones are reported."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has found."""

    now: float
    """Monotonic seconds of the watcher."""
    timeline: Mapping[str, File]
    """The files of the timeline's folder, by path."""
    active: Mapping[str, File]
    """The files of the marker folder and the heartbeat folder, by path. Empty if they were not listed."""
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    """The files that were read, by path."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A writer is at work."""

    instant: str
    rule: ConflictRule


@dataclass(frozen=True, slots=True)
class Touched:
    """It is going to write these file groups."""

    instant: str
    markers: tuple[Marker, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """One of its files was written at `sign`, by the store's clock."""

    instant: str
    sign: float


@dataclass(frozen=True, slots=True)
class Completed:
    """It has committed, and written these file groups."""

    instant: str
    markers: tuple[Marker, ...]
    made_by: Maker = UNKNOWN_MAKER


@dataclass(frozen=True, slots=True)
class Ended:
    """It has ended without a commit."""

    instant: str
    reason: str


Observation: TypeAlias = Opened | Touched | Alive | Completed | Ended

_Key: TypeAlias = tuple[str, str]
"""An instant's time, and what it completes as."""


@dataclass(slots=True)
class _Pending:
    """An instant that has not ended."""

    first_seen: float
    silent: bool
    """It was pending when the watcher began, and has not moved since (rule 2)."""
    opened: bool = False
    is_service: bool = False
    sign: float = 0.0
    reported_at: float = 0.0
    read: dict[str, str] = field(default_factory=dict)
    """The version in which each of its files was read."""
    known: dict[tuple[str, str], Marker] = field(default_factory=dict)
    """What it touches."""
    unreported: list[Marker] = field(default_factory=list)
    completed: InstantMetadata | None = None
    """What its completed file says."""
    unreadable_since: float | None = None
    """When its completed file was found to be unreadable."""

    def is_unreadable(self, now: float) -> bool:
        """Return whether its completed file could not be read for too long."""
        if self.unreadable_since is None:
            self.unreadable_since = now
        return now - self.unreadable_since >= UNREADABLE_SECONDS

    def touch(self, markers: Iterable[Marker]) -> None:
        for each in markers:
            place = (each.partition, each.file_group)
            if place not in self.known:
                self.known[place] = each
                self.unreported.append(each)


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A listing of the timeline."""

    names: AbstractSet[str]
    instants: list[Instant]
    writes: dict[_Key, Instant]
    """Those that change the table's files."""


@dataclass(slots=True)
class WatchedTable:
    """What a watcher knows of one table."""

    table: HudiTable
    grace: float
    """Seconds between the first sight of an instant and its report."""
    pending: dict[_Key, _Pending] = field(default_factory=dict)
    finished: set[_Key] = field(default_factory=set)
    """Instants of the timeline of which nothing is to be reported any more."""
    began: bool = False
    """Whether the first round is over."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """From the last round: files that could not be read, and why."""
    _missing: set[_Key] = field(default_factory=set)
    """Pending instants that the last listing lacked, after which the table was there."""
    _parsed: _Parsed | None = None
    _quiet: AbstractSet[str] | None = None
    """The files of the last listing, if nothing followed from them and nothing is pending: then nothing follows again."""

    def is_active(self, timeline: Mapping[str, File]) -> bool:
        """Whether the markers and heartbeats must be listed: an instant of this listing is pending."""
        if timeline.keys() == self._quiet:
            return False
        return any(each.state != "completed" for each in self._unfinished(timeline))

    def wanted(self, timeline: Mapping[str, File], active: Mapping[str, File]) -> list[str]:
        """The files to read in this round, in the order of their importance."""
        found: list[str] = []
        if timeline.keys() == self._quiet:
            return found
        folders = _by_instant(active)
        present: set[_Key] = set()
        for instant in self._unfinished(timeline):
            present.add(_key(instant))
            pending = self.pending.get(_key(instant))
            read = {} if pending is None else pending.read
            files = [self._path(each) for each in instant.files if self._matters(instant, each)]
            files += [
                each for each in folders.get(instant.time, ()) if is_markers_file(each.rpartition("/")[2])
            ]
            for path in files:
                file = timeline.get(path) or active[path]
                if file.size and read.get(path) != file.version:
                    found.append(path)
        if any(key not in present for key in self.pending):
            found.insert(0, PROPERTIES)
        return found

    def advance(self, seen: Round) -> list[Observation]:
        """Apply a round and return what to report, in this order."""
        self.problems = []
        if seen.timeline.keys() == self._quiet:
            return []
        current = self._instants(seen.timeline).instants
        if not self.began:
            self._begin(current)
        keys = {_key(each) for each in current}
        self.finished &= keys
        reports: list[Observation] = []
        folders = _by_instant(seen.active)
        for instant in self._unfinished(seen.timeline):
            reports += self._advance_instant(instant, folders.get(instant.time, {}), seen)
        reports += self._end_vanished(keys, current, seen)
        self.began = True
        self._quiet = None if self.pending else seen.timeline.keys()
        return reports

    def _begin(self, current: list[Instant]) -> None:
        """Leave out what had completed before the watcher began, but for the last commits (rule 2)."""
        completed = [each for each in current if each.state == "completed"]
        completed.sort(key=lambda each: each.completion or each.time)
        last = {_key(each) for each in [each for each in completed if each.writes][-MAX_REPEATED:]}
        self.finished |= {_key(each) for each in completed if _key(each) not in last}

    def _instants(self, timeline: Mapping[str, File]) -> _Parsed:
        """The instants of a listing, parsed when its names have changed."""
        if self._parsed is None or self._parsed.names != timeline.keys():
            found = instants((path.rpartition("/")[2] for path in timeline), self.table.layout)
            self._parsed = _Parsed(
                timeline.keys(), found, {_key(each): each for each in found if each.writes}
            )
        return self._parsed

    def _unfinished(self, timeline: Mapping[str, File]) -> list[Instant]:
        found = self._instants(timeline).writes
        writes = [each for key, each in found.items() if key not in self.finished]
        pending = [each for each in writes if each.state != "completed"][:MAX_PENDING]
        return [*pending, *(each for each in writes if each.state == "completed")]

    def _path(self, file: TimelineFile) -> str:
        return self.table.timeline + file.name

    def _matters(self, instant: Instant, file: TimelineFile) -> bool:
        if instant.state == "completed":
            return file.state == "completed"
        if file.state == "requested":
            return instant.is_table_service or file.action == "replacecommit"
        return not instant.is_table_service

    def _advance_instant(
        self, instant: Instant, active: Mapping[str, File], seen: Round
    ) -> list[Observation]:
        key = _key(instant)
        pending = self.pending.get(key)
        files = [*(seen.timeline[self._path(each)] for each in instant.files), *active.values()]
        sign = max(each.modified for each in files)
        if pending is None:
            silent = not self.began
            repeated = silent and instant.state == "completed"
            pending = _Pending(seen.now, silent and not repeated, opened=repeated, sign=sign)
            pending.is_service = instant.is_table_service
            self.pending[key] = pending
        moved = sign > pending.sign
        pending.sign = max(sign, pending.sign)
        pending.silent = pending.silent and not moved and instant.state != "completed"
        self._read(instant, pending, active, seen)
        completed = pending.completed
        due = seen.now - pending.first_seen >= self.grace or pending.opened
        waits = pending.is_service and instant.state == "requested"
        if pending.silent or waits or not due or (instant.state == "completed" and completed is None):
            return []
        reports: list[Observation] = []
        time = instant.time
        if not pending.opened:
            rule: ConflictRule = "deleted-file" if "compaction" in instant.action else "file-group"
            reports.append(Opened(time, rule))
            pending.opened, pending.reported_at = True, seen.now
        if completed is not None:
            markers = each_once((*completed.touched, *pending.unreported))
            reports.append(Completed(time, markers, of_hudi(completed.extra)))
            self.finished.add(key)
            del self.pending[key]
            return reports
        if pending.unreported:
            reports.append(Touched(time, tuple(pending.unreported)))
            pending.unreported, pending.reported_at = [], seen.now
        elif moved and seen.now - pending.reported_at >= BEAT_SECONDS:
            reports.append(Alive(time, sign))
            pending.reported_at = seen.now
        return reports

    def _read(self, instant: Instant, pending: _Pending, active: Mapping[str, File], seen: Round) -> None:
        for file in instant.files:
            path = self._path(file)
            is_empty = file.state == "completed" and not seen.timeline[path].size
            body = b"" if is_empty else seen.bodies.get(path)
            if body is None or not self._matters(instant, file):
                continue
            try:
                metadata = read_metadata(body)
            except UnreadableHudi as error:
                is_given_up = file.state == "completed" and pending.is_unreadable(seen.now)
                if is_given_up or not is_empty:
                    self.problems.append((path, str(error)))
                if is_given_up:
                    pending.completed = InstantMetadata(None, (EVERYTHING,), {})
                continue
            self.problems += [(path, why) for why in metadata.unread]
            if metadata.unread:
                metadata = replace(metadata, touched=(EVERYTHING, *metadata.touched))
            pending.read[path] = seen.timeline[path].version
            pending.is_service = pending.is_service or metadata.operation == "CLUSTER"
            if file.state == "completed":
                pending.completed = metadata
            else:
                pending.touch(metadata.touched)
        for path, file_found in active.items():
            if path.startswith(MARKER_FOLDER):
                self._read_markers(path, file_found, pending, seen)

    def _read_markers(self, path: str, file: File, pending: _Pending, seen: Round) -> None:
        below = path.removeprefix(MARKER_FOLDER).partition("/")[2]
        body = seen.bodies.get(path)
        if is_markers_file(below) and body is not None:
            lines = read_markers_file(body)
            pending.touch(lines.markers)
            pending.read[path] = file.version
            self.problems += [(path, f"not a marker: {each[:200]!r}") for each in lines.unreadable[:3]]
        elif is_direct_marker(below):
            try:
                pending.touch([parse_marker(below)])
            except UnreadableHudi as error:
                self.problems.append((path, str(error)))

    def _end_vanished(self, keys: set[_Key], current: list[Instant], seen: Round) -> list[Observation]:
        """Report the instants that are gone as ended, if the table is still there and they can't be archived (rule 3)."""
        gone = [key for key in self.pending if key not in keys]
        before, self._missing = self._missing, set()
        if not gone or PROPERTIES not in seen.bodies:
            return []
        try:
            read_properties(seen.bodies[PROPERTIES])
        except UnreadableHudi as error:
            self.problems.append((PROPERTIES, str(error)))
            return []
        oldest = min((each.time for each in current if each.state == "completed"), default="")
        reports: list[Observation] = []
        self._missing = set(gone)
        for key in (each for each in gone if each in before):
            pending = self.pending.pop(key)
            if key[0] < oldest:
                self.problems.append(
                    (key[0], "the instant is gone and older than the timeline; its outcome is unknown")
                )
            elif pending.opened:
                reports.append(Ended(key[0], "the instant is gone from the timeline: it was rolled back"))
        return reports


def _key(instant: Instant) -> _Key:
    return instant.time, instant.completes_as


def _by_instant(active: Mapping[str, File]) -> dict[str, dict[str, File]]:
    """The markers and the heartbeat of each instant, by its time."""
    found: dict[str, dict[str, File]] = {}
    for path, file in active.items():
        for folder in (MARKER_FOLDER, HEARTBEAT_FOLDER):
            if path.startswith(folder):
                time = path.removeprefix(folder).partition("/")[0]
                found.setdefault(time, {})[path] = file
    return found


_SERVICES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})


def rolled_back(body: bytes) -> tuple[list[str], frozenset[str]]:
    """The instants that a completed rollback has rolled back, and the partitions in which it found files of them.

    Raises `UnreadableHudi`.
    """
    record = decode(body)
    with reading("the rollback", UnreadableHudi):
        return [str(each) for each in record["commitsRollback"]], frozenset(record["partitionMetadata"])


def past_commit(instant: Instant, found: InstantMetadata, began: float | None, ended: float) -> PastCommit:
    """What a completed instant says of its history."""
    label = json_object(found.extra.get(HUDI_LABEL) or found.extra.get(f"hoodie.{HUDI_LABEL}"))
    maker = of_hudi(found.extra)
    return PastCommit(
        instant.time,
        ended,
        str(label.get("writer") or maker.name or "(unknown)"),
        found.operation or instant.completes_as,
        frozenset(each.partition for each in found.touched),
        frozenset(each.partition for each in found.touched if each.operation != "create"),
        began,
        is_known=began is not None,
        is_service=instant.is_table_service or found.operation in _SERVICES,
        is_gates=bool(label),
        session=maker.job,
        unread=tuple(
            Unread(f"file groups of commit {instant.time}", why, frozenset({Lack.PARTITIONS}))
            for why in found.unread
        ),
    )
