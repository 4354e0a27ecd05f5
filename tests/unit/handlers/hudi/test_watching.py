"""What a watcher reports, from listings of tables that Hudi wrote. `Store` changes a table step by step, as its writer did."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.properties import read_properties
from lakewarden.handlers.hudi.watching import (
    BEAT_SECONDS,
    MAX_REPEATED,
    Alive,
    Completed,
    Ended,
    Observation,
    Opened,
    Round,
    Touched,
    WatchedTable,
)
from lakewarden.handlers.observations import EVERYTHING, UNREADABLE_SECONDS, File
from tests.recorded_hudi import recorded

FIRST, SECOND = "a1079540-5309-48af-8815-49d4dc51cc56-0", "3a5185c7-b28a-4e0c-aaeb-b156e59295e7-0"
A, A_DONE = "20261122135446024", "20261122135446024_20261122135634351.commit"
B, B_DONE = "20261122135643314", "20261122135643314_20261122135847753.commit"
MARKER = f"{FIRST}_0-28-28_{B}.parquet.marker.MERGE"
TIMELINE = ".hoodie/timeline/"


@dataclass
class Store:
    """A table's files, and the watcher that looks at them once a second."""

    name: str = "cow-v9"
    grace: float = 2.0
    now: float = 100.0
    files: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    read: list[str] = field(default_factory=list)
    """What the last round read."""

    def __post_init__(self) -> None:
        self.put(".hoodie/hoodie.properties", recorded(self.name, "hoodie.properties"))
        self.watch()

    def watch(self) -> Store:
        table = read_properties(recorded(self.name, "hoodie.properties"))
        self.watched, self.timeline = WatchedTable(table, self.grace), table.timeline
        return self

    def put(self, path: str, body: bytes = b"") -> Store:
        self.files[path] = body, 5_000_000.0 + self.now
        return self

    def write(self, *names: str) -> Store:
        """Put files of the timeline, with their recorded contents."""
        for name in names:
            empty = name.endswith((".commit.requested", ".deltacommit.requested"))
            self.put(self.timeline + name, b"" if empty else recorded(self.name, name))
        return self

    def remove(self, part: str) -> Store:
        self.files = {path: file for path, file in self.files.items() if part not in path}
        return self

    def look(self, after: float = 1.0) -> list[Observation]:
        """One round."""
        self.now += after
        listing = {
            path: File(path, len(body), f"{len(body)}@{modified}", modified)
            for path, (body, modified) in self.files.items()
        }
        timeline = {
            path: file
            for path, file in listing.items()
            if path.startswith(self.timeline) and "/" not in path.removeprefix(self.timeline)
        }
        active = {
            path: file
            for path, file in listing.items()
            if path.startswith((".hoodie/.temp/", ".hoodie/.heartbeat/"))
        }
        if not self.watched.is_active(timeline):
            active = {}
        self.read = self.watched.wanted(timeline, active)
        readable = [each for each in self.read if each in self.files and each not in self.unreadable]
        bodies = {each: self.files[each][0] for each in readable}
        return self.watched.advance(Round(self.now, timeline, active, bodies))


def started(name: str = "cow-v9") -> Store:
    """A table whose watcher has seen the first round."""
    store = Store(name)
    assert store.look() == []
    return store


def pending(*names: str) -> Store:
    """Instants that have been reported as opened."""
    store = started().write(*names)
    store.look(0)
    store.look(3.0)
    return store


def places(observation: Observation) -> list[tuple[str, str, str]]:
    assert isinstance(observation, Touched | Completed)
    return [(each.partition, each.file_group, each.operation) for each in observation.markers]


def test_the_life_of_a_write_that_hudi_1_2_wrote() -> None:
    """Requested, the workload profile, direct markers, the commit."""
    store = started()

    store.write(f"{B}.commit.requested").put(f".hoodie/.heartbeat/{B}")
    assert store.look() == []
    assert store.look(2.0) == [Opened(B, "file-group")]

    store.write(f"{B}.inflight")
    (touched,) = store.look()
    assert places(touched) == [("p=d1", FIRST, "merge"), ("p=d0", SECOND, "merge")]

    store.put(f".hoodie/.temp/{B}/p=d1/{MARKER}").put(f".hoodie/.temp/{B}/p=d2/{MARKER}")
    (touched,) = store.look()
    assert places(touched) == [("p=d2", FIRST, "merge")]

    store.write(B_DONE).remove(".temp").remove(".heartbeat")
    (completed,) = store.look()
    assert isinstance(completed, Completed)
    assert places(completed) == [("p=d1", FIRST, "merge"), ("p=d0", SECOND, "merge")]
    assert store.look() == []
    assert store.read == []


def test_a_file_is_read_again_only_when_it_has_changed() -> None:
    """An idle instant costs listings, no reads."""
    store = started().write(f"{A}.commit.requested", f"{A}.inflight")
    markers = f".hoodie/.temp/{A}/MARKERS0"
    store.put(f".hoodie/.temp/{A}/MARKERS.type", b"TIMELINE_SERVER_BASED").put(markers)
    store.look()
    assert store.read == [f"{TIMELINE}{A}.inflight"]

    store.put(markers, recorded("cow-v9", "MARKERS0"))
    assert [type(each) for each in store.look(2.0)] == [Opened, Touched]
    assert store.read == [markers]
    store.look()
    assert store.read == []


def test_a_write_that_completes_between_two_rounds_is_reported_whole() -> None:
    store = started().write(f"{A}.commit.requested", f"{A}.inflight", A_DONE)

    assert store.look() == []
    opened, completed = store.look(2.0)

    assert opened == Opened(A, "file-group")
    assert places(completed) == [("p=d1", FIRST, "create"), ("p=d0", SECOND, "create")]


@pytest.mark.parametrize("broken", ["empty", "cut", "unreadable"])
def test_a_completed_file_that_can_not_be_read_completes_nothing(broken: str) -> None:
    """On a local disk, Hudi 0.15 creates the file before it writes it. A store may refuse the read."""
    store = started().write(f"{A}.commit.requested")
    assert store.look(0) == []
    assert len(store.look(3.0)) == 1
    path = TIMELINE + A_DONE
    body = recorded("cow-v9", A_DONE)
    store.put(path, {"empty": b"", "cut": body[:900], "unreadable": body}[broken])
    store.unreadable = {path} if broken == "unreadable" else set()

    assert store.look() == []
    assert bool(store.watched.problems) == (broken == "cut")

    store.unreadable = set()
    (completed,) = store.put(path, body).look()
    assert isinstance(completed, Completed)


@pytest.mark.parametrize("broken", [b"", b"Obj\x01"], ids=["empty", "cut"])
def test_a_completed_file_that_stays_unreadable_has_touched_everything_and_is_read_no_more(
    broken: bytes,
) -> None:
    store = started().put(TIMELINE + A_DONE, broken)
    assert store.look() == []

    opened, completed = store.look(UNREADABLE_SECONDS)

    assert (opened, completed) == (Opened(A, "file-group"), Completed(A, (EVERYTHING,)))
    assert [path for path, _ in store.watched.problems] == [TIMELINE + A_DONE]
    assert store.look() == []
    assert store.watched.problems == []


def test_an_instant_that_is_rolled_back_has_ended() -> None:
    store = pending(f"{A}.commit.requested", f"{A}.inflight")

    assert store.remove(A).look() == []
    (ended,) = store.look()

    assert isinstance(ended, Ended)
    assert ended.instant == A


def test_one_listing_without_an_instant_ends_nothing() -> None:
    """The table may have been away for this listing, and back before its properties were read."""
    store = pending(f"{A}.commit.requested")
    files = dict(store.files)
    for _ in range(2):
        store.remove(A)
        assert store.look() == []
        assert store.read == [".hoodie/hoodie.properties"]
        store.files = dict(files)
        assert store.look() == []


def test_a_table_that_is_gone_ends_nothing() -> None:
    """Its writers may have committed before. It may come back: a store can show an empty listing."""
    store = pending(f"{A}.commit.requested")
    files = dict(store.files)

    store.files = {}
    assert store.look() == []
    assert store.look() == []
    store.files = files
    assert store.look() == []
    (completed,) = store.write(A_DONE).look()

    assert isinstance(completed, Completed)


def test_an_instant_that_may_have_been_archived_is_not_reported_as_ended() -> None:
    """The watcher was away while it completed and left the timeline. Its outcome is unknown."""
    store = pending(f"{A}.commit.requested")

    store.remove(A).write(f"{B}.commit.requested", B_DONE)

    store.look()
    assert not [each for each in store.look() if isinstance(each, Ended)]
    assert store.watched.problems


def test_an_instant_is_alive_when_the_time_of_one_of_its_files_moves() -> None:
    """No clock is compared with the store's: only that its times move counts."""
    store = started().write(f"{A}.commit.requested").put(f".hoodie/.heartbeat/{A}")
    store.look(0)
    store.look(3.0)
    assert store.look(BEAT_SECONDS) == []

    store.put(f".hoodie/.heartbeat/{A}")
    (alive,) = store.look()
    assert isinstance(alive, Alive)
    assert alive.sign == store.files[f".hoodie/.heartbeat/{A}"][1]
    assert store.put(f".hoodie/.heartbeat/{A}").look() == []


def test_a_pending_instant_whose_writer_ended_before_the_watcher_began_is_not_reported() -> None:
    store = Store().write(f"{A}.commit.requested", f"{A}.inflight").put(f".hoodie/.heartbeat/{A}")

    assert store.look() == []
    assert store.look(60.0) == []
    store.put(f".hoodie/.heartbeat/{A}")
    assert [type(each) for each in store.look()] == [Opened]


def test_a_watcher_that_is_restarted_reports_the_last_commits_and_nothing_else() -> None:
    """It doesn't know which commits it has missed. The agent ignores those of which it knows no open transaction."""
    store = pending(f"{A}.commit.requested", f"{B}.commit.requested")
    store.write(A_DONE)

    (completed,) = store.watch().look()

    assert isinstance(completed, Completed)
    assert completed.instant == A
    assert store.look() == []


def test_of_a_long_timeline_only_the_last_commits_are_repeated() -> None:
    store = Store()
    for number in range(MAX_REPEATED + 5):
        store.put(f"{TIMELINE}{number:017}_{number + 1:017}.commit", recorded("cow-v9", A_DONE))
    store.put(f"{TIMELINE}{99:017}_{99:017}.clean", b"x")

    assert [each.instant for each in store.look()] == [f"{n:017}" for n in range(5, MAX_REPEATED + 5)]
    assert store.look() == []


def test_two_watchers_report_the_same() -> None:
    first, second = started(), started()
    for store in (first, second):
        store.write(f"{A}.commit.requested")
        store.look(0)
    second.look(0.5)

    found = [store.look(3.0) + store.write(A_DONE).look() for store in (first, second)]

    assert found[0] == found[1]


def test_a_compaction_is_reported_when_it_runs_and_permits_appends() -> None:
    """A plan may wait for days, and stops no writer."""
    plan = "20261122140253806.compaction.requested"
    store = started("mor-v9").write(plan)
    assert store.look(5.0) == []
    assert store.look(5.0) == []

    store.put(TIMELINE + "20261122140253806.compaction.inflight")
    assert store.look() == [
        Opened("20261122140253806", "deleted-file"),
        Touched("20261122140253806", read_metadata(recorded("mor-v9", plan)).touched),
    ]


def test_a_clustering_of_layout_1_is_known_by_its_plan() -> None:
    """An insert_overwrite has the same names, and is reported when it is requested."""
    time = "20261122140741473"
    store = started("cow-v6").write(f"{time}.replacecommit.requested")
    assert store.look(5.0) == []
    assert store.look(5.0) == []

    store.put(f".hoodie/{time}.replacecommit.inflight")
    opened, touched = store.look()

    assert opened == Opened(time, "file-group")
    assert {each[2] for each in places(touched)} == {"delete"}


def test_the_life_of_a_write_in_layout_1() -> None:
    time = "20261122140722059"
    store = started("cow-v6").write(f"{time}.commit.requested")
    store.look(0)
    store.write(f"{time}.inflight")
    assert [type(each) for each in store.look(3.0)] == [Opened, Touched]

    (completed,) = store.write(f"{time}.commit").look()

    assert isinstance(completed, Completed)
    assert len(completed.markers) == 2


def test_an_instant_that_writes_nothing_is_not_reported() -> None:
    store = started().put(f"{TIMELINE}{A}.clean.requested", b"x").put(f"{TIMELINE}{A}.savepoint.inflight")

    assert store.look(5.0) == []
    assert store.read == []


def test_an_unreadable_marker_is_a_problem_and_hides_no_other() -> None:
    store = started().write(f"{B}.commit.requested")
    store.put(f".hoodie/.temp/{B}/p/garbage.marker.CREATE").put(f".hoodie/.temp/{B}/p/{MARKER}")
    store.look(0)

    opened, touched = store.look(3.0)

    assert isinstance(opened, Opened)
    assert places(touched) == [("p", FIRST, "merge")]
    assert len(store.watched.problems) == 1
