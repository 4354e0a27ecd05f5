"""What `status` shows: who holds a lock, the condition of a table, and commands to copy."""

from __future__ import annotations

import time

import pytest

from lakewarden.agent.operators.conditions import command, with_condition
from lakewarden.agent.operators.status import BlockerView, LockHolder, TableView, TransactionView, lock_holder
from lakewarden.agent.operators.status_text import status_summary, status_tree
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import timestamp
from lakewarden.events import AuditEventUnion, LockAcquired, LockReleased, LockRenewed
from tests.unit.events.building import made

HOUR = 3600.0
UNCONFIRMED = "left to lapse: no complete answer arrived"


def step(
    kind: type[LockAcquired | LockReleased | LockRenewed], seconds: float, detail: str | None
) -> AuditEventUnion:
    """A step whose lease ends in so many seconds."""
    return made(
        kind,
        table="s3://lake/t",
        lock="s3://lake/locks/t",
        valid_until=round((time.time() + seconds) * 1000),
        detail=detail,
    )


@pytest.mark.parametrize(
    "kind, seconds, detail, held, ends_with_lease",
    [
        (LockAcquired, HOUR, None, True, True),
        (LockRenewed, -1, None, False, True),
        (LockReleased, HOUR, None, False, False),
        (LockReleased, HOUR, UNCONFIRMED, True, True),
        (LockReleased, -1, UNCONFIRMED, False, True),
    ],
)
def test_a_lock_whose_release_was_not_confirmed_is_held_until_its_lease_ends(
    kind: type[LockAcquired | LockReleased | LockRenewed],
    seconds: float,
    detail: str | None,
    held: bool,
    ends_with_lease: bool,
) -> None:
    holder = lock_holder(step(kind, seconds, detail))

    assert (holder.held, holder.ends_with_lease) == (held, ends_with_lease)
    if detail is not None:
        assert holder.note == f" (its release was not confirmed, {detail})"


NIGHT = Settings(
    bootstrap_servers="kafka:9092", topic_prefix="night", lock_root="s3://lake/locks", s3_endpoint="http://s3"
)


@pytest.mark.parametrize(
    "settings, words, complete",
    [
        (
            KafkaSettings(),
            ("status", "--table", "s3://lake/t"),
            "lakewarden status --table s3://lake/t {kafka}",
        ),
        (
            KafkaSettings(),
            ("explain", "a'; rm -rf ~ #"),
            """lakewarden explain 'a'"'"'; rm -rf ~ #' {kafka}""",
        ),
        (KafkaSettings(), ("explain", "a\nb'\\"), r"lakewarden explain $'a\U0000000ab\'\\' {kafka}"),
        (
            NIGHT,
            ("abort", "T"),
            "LAKEWARDEN_TOPIC_PREFIX=night lakewarden abort T --bootstrap-servers kafka:9092",
        ),
        (
            NIGHT,
            ("lock", "show", "s3://lake/t"),
            "LAKEWARDEN_TOPIC_PREFIX=night lakewarden lock show s3://lake/t --lock-root s3://lake/locks --s3-endpoint http://s3",
        ),
        (
            NIGHT,
            ("lock", "show", "s3://lake/t", "--lock", "s3://lake/l"),
            "LAKEWARDEN_TOPIC_PREFIX=night lakewarden lock show s3://lake/t --lock s3://lake/l --s3-endpoint http://s3",
        ),
    ],
)
def test_a_command_to_copy_is_complete_and_quoted(
    settings: KafkaSettings, words: tuple[str, ...], complete: str
) -> None:
    """It is pasted into a bare shell. A name must not run anything there, nor break the line."""
    assert command(settings, *words) == complete.format(kafka="--bootstrap-servers localhost:9092")


HELD = LockHolder(
    held=False,
    lock="s3://lake/locks/orders",
    agent="agent-0",
    owner="stranger",
    valid_until="2026-11-26T03:00:20.000+00:00",
    last_step="lock-refused",
    detail="held by another owner",
    waiting=True,
)


def ago(seconds: float) -> str:
    return timestamp((time.time() - seconds) * 1000)


def test_status_begins_with_what_is_wrong_and_shows_short_ids() -> None:
    """A publish hangs: its writer is named, its victim has no command, and `--verbose` has the rest."""
    shop, crm = "5018ac75" + "0" * 24, "77aa0001" + "0" * 24
    query = "c2554438-2e6b-4a36-baf4-fd00ec888d87"
    blocker = BlockerView(shop, f"shop:{query}", "granted")
    hangs = TransactionView(shop, f"shop:{query}", 10, "granted", ago(340), None, 1, 4, ago(305))
    waits = TransactionView(
        crm, f"crm:{query}", 3, "queued", ago(250), "shop", 1, 4, None, None, ago(250), (blocker,)
    )
    table = with_condition(
        TableView("s3://lake/orders", None, (hangs, waits)), time.time(), agents=True, recent=None
    )

    line, branches = status_tree(table, NIGHT, verbose=False)

    assert status_summary([table]) == "1 table, 1 with a problem"
    assert line == "s3://lake/orders: publish hangs for 5 min"
    assert branches[:3] == [
        "cause: shop holds the grant for 5 min; 1 waits for it",
        "remedy: look at shop's job; or end its grant",
        command(NIGHT, "abort", shop, "--table", "s3://lake/orders", "--reason", "its publish hangs"),
    ]
    assert branches[-1] == [
        ("writer", "batch", "phase", "for", "waits for", "transaction"),
        ("shop", "10", "granted", "5 min", "", "5018ac75"),
        ("crm", "3", "queued", "4 min", "shop", "77aa0001"),
    ]
    verbose = status_tree(table, NIGHT, verbose=True)[1][-1]
    assert (verbose[1][0], verbose[1][5], verbose[1][7]) == (f"shop:{query}", shop, "1")


@pytest.mark.parametrize("agents, word", [(True, "lock held by another owner"), (False, "no agent")])
def test_the_condition_follows_from_the_lock_and_the_group(agents: bool, word: str) -> None:
    waits = TransactionView("A", "shop", 1, "waiting", ago(90), "the table's lock", 1, 1, None, None, ago(60))
    view = with_condition(TableView("s3://lake/t", HELD, (waits,)), time.time(), agents=agents, recent=None)

    assert view.condition is not None
    assert view.condition.text == f"{word} for 60 s"
