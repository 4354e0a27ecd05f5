from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from lakewarden.handlers.hudi.timeline import (
    Instant,
    Layout,
    TimelineFile,
    instants,
    parse_name,
    seconds_of,
    taken_for_committed,
)
from tests.recorded_hudi import names

T = "20261122135446024"
C = "20261122135634351"


@pytest.mark.parametrize(
    ("name", "layout", "expected"),
    [
        (f"{T}.commit.requested", 2, (T, "commit", "requested", None)),
        (f"{T}.inflight", 2, (T, "commit", "inflight", None)),
        (f"{T}.deltacommit.inflight", 1, (T, "deltacommit", "inflight", None)),
        (f"{T}_{C}.commit", 2, (T, "commit", "completed", C)),
        (f"{T}.deltacommit", 1, (T, "deltacommit", "completed", None)),
        # A table that was upgraded from layout 1 keeps the names of its older instants.
        (f"{T}.commit", 2, (T, "commit", "completed", None)),
        ("20210101120000.commit", 1, ("20210101120000", "commit", "completed", None)),
        # An action that a later release adds is kept, so that a reader can say that it doesn't know it.
        (f"{T}.refreshcommit.requested", 2, (T, "refreshcommit", "requested", None)),
    ],
)
def test_a_timeline_file_is_known_by_its_name(name: str, layout: Layout, expected: tuple[Any, ...]) -> None:
    assert parse_name(name, layout) == TimelineFile(name, *expected)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("hoodie.properties", 1),
        (f"{T}.inflight.f09d0098-ce75-4e1d-b70f-abcead2cd2e8", 2),
        (f"{T}_{C}.commit.ff3578ff-fe47-4c9f-bb58-906c193ca078", 2),
        (f".{T}.commit.requested.crc", 2),
        (f"{T}_{C}.commit.requested", 2),
        (f"{T}_{C}.commit", 1),
        (f"{T}.requested", 2),
        (f"{T}.compaction", 2),
        ("", 2),
        ("history/manifest_1", 2),
    ],
)
def test_other_names_are_no_files_of_the_timeline(name: str, layout: Layout) -> None:
    """Hudi writes a file under a temporary name and renames it; only the renamed one says something."""
    assert parse_name(name, layout) is None


@given(st.text() | st.from_regex(r"[0-9]+(_[0-9]+)?(\.[a-z]+)*"), st.sampled_from((1, 2)))
def test_no_name_raises(name: str, layout: Layout) -> None:
    """Any program may put a file into the folder."""
    file = parse_name(name, layout)

    assert file is None or file.name == name


def test_the_files_of_an_instant_are_one_instant() -> None:
    """The requested and the inflight file stay beside the completed one."""
    listing = [f"{T}_{C}.commit", f"{T}.inflight", f"{T}.commit.requested", "history"]

    (instant,) = instants(listing, 2)

    assert (instant.time, instant.state, instant.action, instant.completion) == (T, "completed", "commit", C)
    assert [file.state for file in instant.files] == ["requested", "inflight", "completed"]
    assert instant.writes
    assert not instant.is_table_service


@pytest.mark.parametrize(
    ("action", "completes_as"),
    [("compaction", "commit"), ("logcompaction", "deltacommit"), ("clustering", "replacecommit")],
)
def test_a_table_service_is_one_instant_although_it_completes_under_another_name(
    action: str, completes_as: str
) -> None:
    (instant,) = instants([f"{T}.{action}.requested", f"{T}.{action}.inflight", f"{T}_{C}.{completes_as}"], 2)

    assert (instant.state, instant.action, instant.completes_as) == ("completed", action, completes_as)
    assert instant.is_table_service
    assert instant.writes


def test_a_savepoint_is_another_instant_than_the_commit_of_the_same_time() -> None:
    """Otherwise a pending savepoint would look like a commit that is not completed."""
    commit, savepoint = instants([f"{T}_{C}.commit", f"{T}.savepoint.inflight"], 2)

    assert (commit.completes_as, commit.state) == ("commit", "completed")
    assert (savepoint.completes_as, savepoint.state, savepoint.writes) == ("savepoint", "inflight", False)


def test_instants_come_in_the_order_of_their_times() -> None:
    listing = ["20261122135850011.replacecommit.requested", f"{T}.commit.requested"]

    assert [each.time for each in instants(listing, 2)] == [T, "20261122135850011"]


def test_the_names_that_hudi_1_2_wrote_are_three_writes() -> None:
    found = instants(names("cow-v9"), 2)

    assert [_summary(each) for each in found] == [
        ("20261122135446024", "commit", "completed", "20261122135634351"),
        ("20261122135643314", "commit", "completed", "20261122135847753"),
        ("20261122135850011", "replacecommit", "completed", "20261122135903033"),
    ]


@pytest.mark.parametrize(
    ("listing", "completing", "taken"),
    [
        (["10.commit.requested", "10.inflight"], None, []),
        (["10.commit.requested", "10.inflight", "20.commit.requested"], "20", ["10"]),
        (["10.commit.requested", "10.inflight", "20.commit.requested"], "10", []),
        (["10.deltacommit.requested", "20_30.deltacommit", "40.deltacommit.requested"], "40", ["10"]),
        (["10.replacecommit.requested", "20_30.commit"], None, ["10"]),
        (["10_20.commit", "30.commit.requested", "30.inflight", "40_50.commit"], "60", []),
        (["10.savepoint.inflight", "10.clean.requested", "20_30.commit"], None, []),
        (["10.commit.requested", "20_30.clean"], None, []),
    ],
)
def test_a_pending_write_before_the_first_completed_one_is_taken_for_committed(
    listing: list[str], completing: str | None, taken: list[str]
) -> None:
    found = taken_for_committed(instants(listing, 2), completing)

    assert [each.time for each in found] == taken


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("20261122140722059", 1_795_356_442.059),
        ("20261122140722", 1_795_356_442.0),
        *((each, None) for each in ("0" * 14, "9" * 17, "1", "20261322000000000", "²²²²", "")),
    ],
)
def test_the_time_of_an_instant_is_a_moment_if_a_calendar_has_it(time: str, seconds: float | None) -> None:
    assert seconds_of(time) == (None if seconds is None else pytest.approx(seconds))


def _summary(instant: Instant) -> tuple[str, str, str, str | None]:
    return instant.time, instant.action, instant.state, instant.completion
