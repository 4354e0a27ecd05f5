"""What `status` shows: who holds a lock, the condition of a table, and commands to copy. What pages show of other commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from lakewarden.agent.clock import moment
from lakewarden.agent.errors import SuspendedError
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.operators.agents import AgentsView, PartitionView
from lakewarden.agent.operators.ledger import LedgerLine
from lakewarden.agent.operators.past import Losses, RefusedEvent
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import (
    BlockerView,
    LockHolder,
    TableView,
    TransactionView,
    lock_holder,
    with_condition,
)
from lakewarden.agent.operators.text import lines
from lakewarden.agent.serving.http_endpoint import readiness_text
from lakewarden.agent.serving.log_records import decisions_in
from lakewarden.agent.serving.partition.stopped_tables import StoppedTables
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import timestamp
from lakewarden.events import (
    EVENT,
    AuditEventUnion,
    LockAcquired,
    LockReleased,
    LockRenewed,
    Undecodable,
    decode,
    encode,
    partition_name,
)
from lakewarden.handlers.explain.life import Ends
from lakewarden.handlers.group.readiness import OwnedPartition, conditions
from lakewarden.handlers.setup import Member
from tests.printed import as_shown
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import a_conflict, an_overlap, made
from tests.unit.handlers.explain.explained import explanation_of
from tests.unit.handlers.group.test_readiness import LIMITS, READY
from tests.unit.handlers.table.world import m, world

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

KAFKA = Settings(bootstrap_servers="kafka:9092")


@pytest.mark.parametrize(
    "settings, words, complete",
    [
        (KafkaSettings(), ["status", "--table", "s3://lake/t"], "status --table s3://lake/t {kafka}"),
        (KafkaSettings(), ("explain", "a'; rm -rf ~ #"), """explain 'a'"'"'; rm -rf ~ #' {kafka}"""),
        (KafkaSettings(), ("explain", "a\nb'\\"), r"explain $'a\U0000000ab\'\\' {kafka}"),
        (NIGHT, ("abort", "T"), "abort T {kafka}"),
        (
            NIGHT,
            ["lock", "show", "s3://lake/t"],
            "lock show s3://lake/t --lock-root s3://lake/locks --s3-endpoint http://s3",
        ),
        (
            NIGHT,
            ["watch", "--table", "s3://lake/t"],
            "watch --table s3://lake/t {kafka} --s3-endpoint http://s3",
        ),
        (
            NIGHT,
            ["lock", "show", "s3://lake/t", "--lock", "s3://lake/l"],
            "lock show s3://lake/t --lock s3://lake/l --s3-endpoint http://s3",
        ),
    ],
)
def test_a_command_to_copy_is_complete_and_quoted(
    settings: KafkaSettings, words: tuple[str, ...], complete: str
) -> None:
    """It is pasted into a bare shell. A name must not run anything there, nor break the line."""
    found = command(settings, *words)

    prefix = "LAKEWARDEN_TOPIC_PREFIX=night " if settings is NIGHT else ""
    kafka = f"--bootstrap-servers {settings.bootstrap_servers}"
    assert found == f"{prefix}lakewarden {complete.format(kafka=kafka)}"
    for width in (20, 76, 1_000):
        lines = found.folded(width)
        assert bash_words("\n".join(lines)) == bash_words(found)
        assert all(len(each) <= width or each.removesuffix(" \\").strip() in found.words for each in lines)


def bash_words(line: str) -> list[str]:
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    return printed.stdout.decode().split("\0")


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

OWN_LOCK = replace(HELD, held=True, last_step="lock-renewed", detail=None, waiting=False)


AGENTS = (Member("agent-a", "0.1.0"),)


def ago(seconds: float) -> str:
    return timestamp((time.time() - seconds) * 1000)


def status_lines(views: list[TableView], settings: Settings, *, verbose: bool = False) -> list[str]:
    return lines("status", views, verbose=verbose, table=None, command=partial(command, settings))


def test_status_begins_with_what_is_wrong_and_shows_short_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A publish hangs: its writer is named, its victim has no command, and `--verbose` has the rest."""
    shop, crm = "5018ac750d54478e9f0c3d1b2a6e7f80", "77aa0001c3f24e0b8d6a1f5e9b7c2d40"
    query = "c2554438-2e6b-4a36-baf4-fd00ec888d87"
    blocker = BlockerView(shop, f"shop:{query}", "granted")
    hangs = TransactionView(shop, f"shop:{query}", 10, "granted", ago(340), None, 1, 4, ago(305))
    waits = TransactionView(
        crm, f"crm:{query}", 3, "queued", ago(250), "shop", 1, 4, None, None, ago(250), (blocker,)
    )
    table = with_condition(
        TableView("s3://lake/orders", OWN_LOCK, (hangs, waits)), time.time(), AGENTS, Ends()
    )

    for line, shown in (("lakewarden status", False), ("lakewarden status --verbose", True)):
        as_shown("docs/runbooks.md", line, "\n".join(status_lines([table], KAFKA, verbose=shown)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    folded = [
        f"    lakewarden abort {shop} --table s3://lake/orders \\",
        "      --reason 'its publish hangs' --bootstrap-servers kafka:9092",
    ]
    assert status_lines([table], KAFKA)[4:6] == folded, "on a terminal, the lines of a command can be copied"
    monkeypatch.undo()

    assert [each.removeprefix("    ") for each in status_lines([table], NIGHT)[:5]] == [
        "1 table, 1 with a problem",
        "s3://lake/orders: publish hangs for 5 min",
        "├── cause: shop has held the grant for 5 min; 1 waits for it",
        "├── remedy: look at shop's job; or end its grant",
        command(NIGHT, "abort", shop, "--table", "s3://lake/orders", "--reason", "its publish hangs"),
    ]
    assert [each[4:].split() for each in status_lines([table], NIGHT)[-3:]] == [
        ["writer", "batch", "phase", "for", "waits", "for", "transaction"],
        ["shop", "10", "granted", "5", "min", "5018ac75"],
        ["crm", "3", "queued", "4", "min", "shop", "77aa0001"],
    ]
    whole = status_lines([table], NIGHT, verbose=True)[-2].split()
    assert (whole[0], whole[5], whole[7]) == (f"shop:{query}", shop, "1")


@pytest.mark.parametrize("agents, word", [(True, "lock held by another owner"), (False, "no agent")])
def test_the_condition_follows_from_the_lock_and_the_group(agents: bool, word: str) -> None:
    waits = TransactionView("A", "shop", 1, "waiting", ago(90), "the table's lock", 1, 1, None, None, ago(60))
    view = with_condition(TableView("s3://lake/t", HELD, (waits,)), time.time(), AGENTS[:agents], Ends())

    assert view.condition is not None
    assert view.condition.text == f"{word} for 60 s"
    assert f"lock: held by stranger, not by agent agent-0; the lease ends at {HELD.valid_until}" in "\n".join(
        status_lines([view], KAFKA)
    )


RUNBOOKS, COMMANDS = "docs/runbooks.md", "docs/commands.md"
FROM_A_LATER_VERSION = b'{"type":"commit-granted","protocol":2}'
NOT_READY = {
    "An agent is behind": replace(READY, partitions=(OwnedPartition(3, "live", 7012, 958.0),)),
    "A topic was deleted": replace(READY, partitions=(), queued_at=None, unowned=(0, 1, 2)),
}


def test_the_pages_show_what_the_commands_print() -> None:
    def shown(page: str, line: str, printed: Iterable[str]) -> None:
        as_shown(page, line, "\n".join(printed))

    shop, stock, orders = "shop-3f0cb31b", "stock-7d1c90e2", "s3://lake/orders"
    w = world().intent(shop, writer="shop", batch_id=7).touch(shop, m("day=1/f-3")).lock().request(shop)
    w.intent(stock, m("day=1/*"), writer="stock", batch_id=3, admission="queued")
    shown(RUNBOOKS, "lakewarden explain stock-7d1c90e2", lines("explain", explanation_of(w, stock)))
    shown(RUNBOOKS, "lakewarden explain shop-3f0cb31b", lines("explain", explanation_of(w.tick(21), shop)))

    owned = tuple(
        PartitionView(number, "agent-a", running=True, term="t", taken="", unread=0, replay=0)
        for number in range(8)
    )
    gone = replace(owned[0], running=False, term="5d11f6a0", taken="2026-11-26T02:41:07.318+00:00")
    running = AgentsView("lakewarden-agents", (Member("agent-a", "0.1.0"),), owned)
    shown(COMMANDS, "lakewarden agents", lines("agents", running))
    shown(RUNBOOKS, "lakewarden agents", lines("agents", replace(running, members=(), partitions=(gone,))))

    rubbish = decode(EVENT, b"rubbish")
    assert isinstance(rubbish, Undecodable)
    where = ("lakewarden.writers", 5, 1209)
    event = RefusedEvent(
        "2026-11-26T02:41:07.318Z", rubbish.reason, *where, None, None, None, None, "rubbish"
    )
    shown(RUNBOOKS, "lakewarden refused", lines("refused", [event]))

    conflict = a_conflict(an_overlap("day=1", "shop", file_group="f-3"), writer="crm", table=orders)
    shown(RUNBOOKS, "lakewarden conflicts", lines("conflicts", [conflict]))
    losses = Losses(hours=6)
    losses.add(consumed(encode(conflict), at_ms=moment().wall_ms))
    shown(COMMANDS, "lakewarden losses", lines("losses", losses.report()))

    for heading, facts in NOT_READY.items():
        text = readiness_text(conditions(facts, LIMITS))
        shown(f"{RUNBOOKS}#{heading}", "curl -s localhost:8437/readyz", text.splitlines())
    metrics = AgentMetrics()
    metrics.on_session_end(SuspendedError(""))
    samples = generate_latest(metrics.registry).decode().splitlines()
    ended = [line for line in samples if "sessions_ended_total{" in line]
    shown(RUNBOOKS, "curl -s localhost:8437/metrics | grep sessions_ended_total{", ended)

    newer: list[str] = []
    later = consumed(FROM_A_LATER_VERSION, 4711, topic="lakewarden.decisions")
    assert list(decisions_in([later], on_newer=newer.append)) == []
    stopped = StoppedTables(cast("Any", None), cast("Any", None))
    stopped.reasons[orders] = "list index out of range"
    for heading, table, why in (
        ("A partition is refused", partition_name(5), newer[0]),
        ("A table is stopped", orders, stopped.why(orders)),
    ):
        view = with_condition(TableView(table, None, (), refused=why), time.time(), AGENTS, Ends())
        shown(f"{RUNBOOKS}#{heading}", "lakewarden status", status_lines([view], KAFKA))

    entry = LedgerLine(orders, "job:1", 7, "ledger-corrected-4711", None, ago(9), 12, 0)
    shown(COMMANDS, "lakewarden ledger show s3://lake/orders", lines("ledger", [entry], names=()))
