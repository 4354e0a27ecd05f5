"""The condition of a table in one word: the incidents of a night, and what holds for every table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import Abort, CommitCompleted, ConflictEntry, TransactionAbandoned
from lakewarden.handlers.explain.condition import (
    LOSS_SECONDS,
    NAMES,
    QUIET_SECONDS,
    Denied,
    Facts,
    Open,
    age,
    condition,
)
from lakewarden.handlers.explain.life import Ends, writer_name
from tests.unit.events.building import made

TABLE, LOCK = "s3://lake/orders", "s3://lake/locks/orders"
HELD = Denied(LOCK, waiting=True, holder="stranger", detail="held by another owner")
NOW = 100_000.0
QUERY = "c2554438-2e6b-4a36-baf4-fd00ec888d87"


def tx(name: str, phase: str, seconds: float | None, *behind: str, **more: bool) -> Open:
    """A transaction of the writer `<name>:<query id>`, or one that a watcher reports."""
    return Open(name, name if ":" in name else f"{name}:{QUERY}", phase, seconds, behind, **more)  # type: ignore[arg-type]


def committed(writer: str) -> CommitCompleted:
    return made(CommitCompleted, table=TABLE, writer=writer, transaction="T", grant="g")


def recent(
    *commits_ago: float, losses: tuple[float, ...] = (), reported: bool = True, ends: bool | None = None
) -> Ends:
    """`reported`: a watcher has reported the commits that won."""
    found, loser = Ends(), {"table": TABLE, "writer": f"crm:{QUERY}", "transaction": "T"}
    entry = ConflictEntry(
        partition="p",
        file_group="f",
        operation="merge",
        other_operation="merge",
        other_transaction="delta:49",
        other_writer="delta:49",
        kind="commit",
    )
    lost = {"reason": "conflict", "retriable": True, "conflicts": (entry,)}
    abort = made(Abort, **loser, **lost)
    bypassed = made(TransactionAbandoned, **loser, reason="r", cause="base-changed", lost_to="version 49")
    for each in losses:
        found.note(abort if reported else bypassed, NOW - each)
    for each in commits_ago:
        found.note(committed("shop"), NOW - each, ends_itself=ends)
    return found


def facts(*found: Open, agents: bool | None = True, **more: object) -> Facts:
    return Facts(TABLE, NOW, agents, open=found, **more)  # type: ignore[arg-type]


SHOP = tx("shop", "granted", 300)
BEHIND_SHOP = (tx("crm", "queued", 290, "shop"), tx("stock", "queued", 250, "crm", "shop"))
BACKFILL, BEHIND_BACKFILL = tx("backfill", "active", 900), tx("crm", "queued", 720, "backfill")
ABORT_SHOP = f"abort shop --table {TABLE} --reason its publish hangs"
ABORT_BACKFILL = f"abort backfill --table {TABLE} --reason others wait for it"
RELEASE = f"lock release {TABLE} --if-owner stranger --lock {LOCK}"
STEADY, LOSING = recent(*range(30, 400, 30)), recent(losses=(20, 9, 4))


INCIDENTS = [
    (facts(), "ok", ""),
    # a publish hangs, in the default admission: the others are queued, and none waits for its grant
    (facts(SHOP, *BEHIND_SHOP), "publish hangs for 5 min", ABORT_SHOP),
    (facts(SHOP, tx("crm", "waiting", 70, "shop")), "publish hangs for 5 min", ABORT_SHOP),
    (facts(tx("shop", "granted", 299)), "ok", ""),
    (facts(tx("shop", "granted", 59), tx("crm", "queued", 58, "shop")), "ok", ""),
    (facts(replace(SHOP, withdrawn=True)), "publish hangs for 5 min", ""),
    # a queue behind a backfill; everyday queueing; a table that commits every ten minutes
    (facts(BACKFILL, BEHIND_BACKFILL), "queued behind backfill for 12 min", ABORT_BACKFILL),
    (
        facts(BACKFILL, BEHIND_BACKFILL, tx("stock", "queued", 730, "crm")),
        "queued behind backfill for 12 min",
        ABORT_BACKFILL,
    ),
    (facts(BACKFILL, tx("crm", "queued", 59, "backfill")), "ok", ""),
    (facts(BACKFILL, BEHIND_BACKFILL, ends=recent(*range(600, 3600, 600))), "ok", ""),
    (
        facts(tx("delta:49", "observed", 90), tx("crm", "queued", 80, "delta:49")),
        "queued behind delta for 80 s",
        "",
    ),
    # no agent, with and without knowing the group
    (facts(tx("crm", "queued", 3), agents=False), "no agent for 3 s", f"doctor {TABLE}"),
    (facts(agents=False), "no agent", f"doctor {TABLE}"),
    (facts(tx("crm", "queued", 30), agents=None), "no agent for 30 s", "agents"),
    (facts(tx("crm", "queued", 29), agents=None), "ok", ""),
    (facts(tx("crm", "queued", 59), waits_known=False), "ok", ""),
    # the lock of a stranger, or of an agent that was killed: its lease ends by itself
    (facts(tx("crm", "waiting", 180), denied=HELD), "lock held by another owner for 3 min", RELEASE),
    (facts(tx("crm", "waiting", 34), denied=HELD), "ok", ""),
    (facts(denied=HELD), "ok", ""),
    (
        facts(tx("crm", "waiting", 2), denied=Denied(LOCK, waiting=False, detail="403")),
        "lock refused for 2 s",
        "lock probe s3://lake/locks",
    ),
    (facts(tx("crm", "waiting", 65)), "waits for the table's lock for 65 s", f"lock show {TABLE}"),
    # a writer without the gate
    (facts(ends=LOSING), "loses to a writer without the gate for 20 s", f"explain T --table {TABLE}"),
    (
        facts(ends=recent(losses=(20, 9, 4), reported=False)),
        "loses to a writer without the gate for 20 s",
        f"watch --table {TABLE}",
    ),
    (facts(ends=recent(losses=(4,))), "ok", ""),
    (facts(ends=recent(losses=(LOSS_SECONDS + 2, LOSS_SECONDS + 1))), "ok", ""),
    # no commits, against the usual pace
    (facts(ends=recent(*range(700, 1000, 30))), "quiet for 11 min", f"ledger show {TABLE}"),
    (
        facts(ends=recent(*range(700, 1000, 30), ends=False)),
        "no commits for 11 min",
        f"ledger show {TABLE}",
    ),
    (facts(BACKFILL, ends=recent(*range(700, 1000, 30))), "ok", ""),
    (facts(ends=recent(*range(700, 7000, 600))), "ok", ""),
    (facts(ends=recent(5000, 5001)), "ok", ""),
    (facts(ends=STEADY), "ok", ""),
    # the worst of several
    (facts(SHOP, *BEHIND_SHOP, refused="not among the allowed ones"), "refused by the agent", ""),
    (facts(SHOP, *BEHIND_SHOP, ends=LOSING), "publish hangs for 5 min", ABORT_SHOP),
]


@pytest.mark.parametrize("known, text, command", INCIDENTS)
def test_the_word_and_the_command_of_each_incident(known: Facts, text: str, command: str) -> None:
    found = condition(known)

    assert (found.text, " ".join(found.command)) == (text, command)
    assert (found.name == "ok") is (found.cause is None) is (found.remedy is None)


def test_a_remedy_says_where_the_writer_runs() -> None:
    where = "host etl-7, process 4711, Spark application app-1, http://etl-7:4040"
    hangs, slow = (
        condition(facts(replace(each, runs_at=where), tx("crm", "queued", 290, each.transaction))).remedy
        for each in (SHOP, BACKFILL)
    )

    assert hangs == f"look at shop's job ({where}); or end its grant"
    assert slow is not None
    assert slow.startswith(f"wait; or abort it ({where}): its work is lost")


LET_IT_USE_THE_GATE = (
    "let that writer use the gate, or pause it; a watcher reports its commits, and stops batches early"
)


@pytest.mark.parametrize(
    ("commit", "to", "text", "remedy"),
    [
        (
            "version 49: DBR",
            "a writer without the gate (version 49: DBR)",
            "loses to a writer without the gate for 9 s",
            LET_IT_USE_THE_GATE,
        ),
        (
            None,
            "a commit that the table doesn't name",
            "loses to unknown commits for 9 s",
            "see what its last error says; of a writer without the gate, a watcher reports the commits",
        ),
    ],
)
def test_a_commit_that_the_table_does_not_name_is_not_called_one_without_the_gate(
    commit: str | None, to: str, text: str, remedy: str
) -> None:
    found, names = Ends(), {"table": TABLE, "writer": "crm", "transaction": "T"}
    for each in (9, 4):
        found.note(
            made(TransactionAbandoned, **names, reason="r", cause="base-changed", lost_to=commit), NOW - each
        )

    known = condition(facts(ends=found))

    assert known.cause == f"crm has lost 2 times in 5 s to {to}"
    assert (known.text, known.remedy) == (text, remedy)


def test_a_writer_that_commits_again_loses_no_more() -> None:
    found = recent(losses=(20, 9, 4))
    found.note(committed(f"crm:{QUERY}"), NOW - 1)

    assert condition(facts(ends=found)).name == "ok"


def runs(*begun_ago: float) -> tuple[float, ...]:
    """The commits of runs of four micro-batches, a second apart."""
    return tuple(ago - second for ago in begun_ago for second in range(4))


@pytest.mark.parametrize(
    ("commits", "ends", "text"),
    [
        # a run with availableNow: finished, and its next run is late only against former runs
        (runs(663), True, "finished"),
        (runs(4_000, 663), True, "finished"),
        (runs(90_000), True, "finished"),
        (runs(7_863, 4_263, 663), True, "finished"),
        (runs(25_200, 21_600, 18_004), True, "no commits for 5 h"),
        # a stream that doesn't end by itself is late, also after former runs
        (runs(663), False, "no commits for 11 min"),
        (runs(7_863, 4_263, 663), False, "no commits for 11 min"),
        # not known: the word is weaker, until former runs say more
        (runs(663), None, "quiet for 11 min"),
        (runs(7_863, 4_263, 663), None, "ok"),
        (runs(25_200, 21_600, 18_004), None, "no commits for 5 h"),
        (runs(300), None, "ok"),
    ],
)
def test_a_job_that_ended_is_not_late(commits: tuple[float, ...], ends: bool | None, text: str) -> None:
    """In whatever order the commits are noted."""
    for order in (commits, commits[::-1]):
        assert condition(facts(ends=recent(*order, ends=ends))).text == text


def test_one_job_of_a_run_that_does_not_end_by_itself_makes_the_table_late() -> None:
    found = recent(*runs(663), ends=True)
    found.note(committed("stream"), NOW - 662, ends_itself=False)

    assert condition(facts(ends=found)).name == "no-commits"


TRANSACTIONS = st.lists(
    st.builds(
        tx,
        st.sampled_from("ABCD"),
        st.sampled_from(["queued", "active", "waiting", "granted", "observed"]),
        st.none() | st.floats(0, 10_000),
        st.sampled_from("ABCD"),
        st.sampled_from("ABCD"),
        withdrawn=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda each: each.transaction,
)


@given(
    TRANSACTIONS,
    st.sampled_from([True, False, None]),
    st.none() | st.just(HELD),
    st.booleans(),
    st.lists(st.floats(0, 10_000), max_size=5),
    st.lists(st.floats(0, 10_000), max_size=3),
)
def test_a_remedy_never_acts_on_a_victim(  # noqa: PLR0917 - one for each strategy
    found: list[Open],
    agents: bool | None,
    denied: Denied | None,
    waits_known: bool,
    commits: list[float],
    losses: list[float],
) -> None:
    """Also of waits in a circle, and of a chain whose end is unknown."""
    known = facts(
        *found,
        agents=agents,
        denied=denied,
        waits_known=waits_known,
        ends=recent(*commits, losses=tuple(losses)),
    )

    word = condition(known)

    assert word.name in NAMES
    assert (agents is False) <= (word.name == "no-agent")
    phases = {each.transaction: each.phase for each in found}
    if word.command[:1] == ("abort",):
        assert phases[word.command[1]] in ("granted", "active")
        assert len([each for each in found if each.transaction == word.transaction]) == 1
    if word.name in ("no-commits", "quiet"):
        assert not found
        assert (word.seconds or 0.0) >= QUIET_SECONDS


@pytest.mark.parametrize(
    "seconds, text",
    [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 days")],
)
def test_an_age_has_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    "writer, name",
    [
        (f"shop:{QUERY}", "shop"),
        ("delta:49", "delta"),
        ("a:b", "a:b"),
        ("shop", "shop"),
        (f":{QUERY}", f":{QUERY}"),
    ],
)
def test_a_writer_is_named_without_its_query_id(writer: str, name: str) -> None:
    assert writer_name(writer) == name
