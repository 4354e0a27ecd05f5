"""`lakewarden status`: each table with its condition (`handlers/explain/condition.py` has the rules), and complete commands."""

import shlex
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from aiokafka.errors import GroupAuthorizationFailedError

from lakewarden.agent.clock import moment
from lakewarden.agent.log import Log
from lakewarden.agent.operators.cluster_facts import group_facts
from lakewarden.agent.operators.log_replay import replay_log
from lakewarden.agent.operators.status import (
    TableView,
    TransactionView,
    last_lock_steps,
    partition_views,
    refused_tables,
    table_view,
)
from lakewarden.agent.operators.timelines import read_timelines
from lakewarden.agent.serving.takeover import find_ledger_gaps
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import timestamp
from lakewarden.events import DEFAULT_PREFIX, partition_name
from lakewarden.events.access import partition_of
from lakewarden.handlers.explain.condition import Denied, Facts, Open, Recent, condition
from lakewarden.handlers.setup.agents import Member

_OF_LOCKS = ("lock", "doctor")
"""Commands that read the stores of the locks, and not only Kafka."""
_OF_STORES = (*_OF_LOCKS, "watch")


async def status(settings: KafkaSettings, table: str | None = None) -> list[TableView]:
    """The tables of which the log has an open transaction, a recent lock step (`AUDIT_WINDOW`) or an end, or the given table.

    The worst come first. Before them, the partitions whose log is incomplete, with a given table the one of that table.
    """
    async with Log(settings) as log:
        replay = await replay_log(log)
        await log.partitions(log.topics.ledger)  # an error names the topic if it is missing or hidden
        locks = await last_lock_steps(log)
        ledgers = await find_ledger_gaps(log, replay.starts)
        members = await group_members(log, settings.group)
        recent = (await read_timelines(log)).recent
    refusals: dict[str, str] = {}
    for decisions in replay.decisions.values():
        refusals |= refused_tables(decisions)
    uris = (
        {uri for uri, state in replay.tables.items() if state.open()}
        | set(locks)
        | set(refusals)
        | set(recent)
    )
    of_table = None
    if table is not None:
        uris = {table}
        of_table = partition_of(table, len(replay.starts))
    troubles = partition_views(
        replay.starts,
        replay.refused,
        {number: each.gap for number, each in ledgers.items() if each.gap is not None},
    )
    agents, now = None if members is None else bool(members), moment().wall_ms / 1000
    found = [
        with_condition(
            table_view(uri, replay, locks.get(uri), refusals.get(uri)),
            now,
            agents=agents,
            recent=recent.get(uri),
        )
        for uri in sorted(uris)
    ]
    return [view for number, view in troubles.items() if of_table in (None, number)] + sorted(found, key=rank)


def rank(view: TableView) -> tuple[int, float]:
    """The order of tables: partitions in trouble, then the worst tables."""
    return (-1, 0.0) if view.condition is None else view.condition.rank


async def group_members(log: Log, group: str) -> tuple[Member, ...] | None:
    """The agents in the group. None: this user may not see them."""
    try:
        return (await group_facts(await log.admin(), group)).members
    except GroupAuthorizationFailedError:
        return None


def with_condition(
    view: TableView,
    now: float,
    *,
    agents: bool | None,
    recent: Recent | None,
    waits_known: bool = True,
) -> TableView:
    """The table with its condition, its last commit and its pace. `now`: seconds since the epoch."""
    if view.table.startswith(partition_name(0)[:-1]):
        return view
    lock = view.lock
    denied = None
    if lock is not None and lock.last_step == "lock-refused":
        denied = Denied(lock.lock, lock.waiting, lock.owner or None, lock.detail)
    found = condition(
        Facts(
            view.table,
            now,
            agents,
            view.refused,
            denied,
            tuple(_open(each, now) for each in view.transactions),
            waits_known,
            recent,
        )
    )
    last = None if recent is None else recent.last_commit
    pace = None if recent is None else recent.pace
    return replace(
        view,
        condition=found,
        last_commit=None if last is None else timestamp(last * 1000),
        pace_seconds=None if pace is None else round(pace, 1),
    )


def _open(view: TransactionView, now: float) -> Open:
    since = view.granted or view.waiting_since or view.since
    try:
        seconds = max(0.0, now - datetime.fromisoformat(since).timestamp())
    except (ValueError, OverflowError):
        seconds = None  # before the log's beginning, or a time that a client has made up
    return Open(
        view.transaction,
        view.writer,
        cast("Any", view.phase),
        seconds,
        tuple(each.transaction for each in view.blockers),
        withdrawn=view.revoked is not None,
        runs_at=view.runs_at,
    )


class Command(str):
    """A command to copy. As text it is one line."""

    __slots__ = ("words",)
    words: tuple[str, ...]
    """Quoted for a shell, each option with its value."""

    def folded(self, width: int) -> list[str]:
        """Lines that a shell reads as the same command. One that has to be longer has a single word."""
        lines = [""]
        for word in self.words:
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if len(longer) + len(" \\") <= width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(f"  {word}")
        return [*(f"{each} \\" for each in lines[:-1]), lines[-1]]


def command(settings: KafkaSettings, *words: str) -> Command:
    """A command to copy, complete and quoted for a shell: it finds the same Kafka, topics and locks in a shell without settings.

    Credentials are not in it. Control characters are shown, never executed by pasting.
    """
    prefix = settings.topic_prefix
    names = [] if prefix == DEFAULT_PREFIX else [f"LAKEWARDEN_TOPIC_PREFIX={_quoted(prefix)}"]
    options: list[str] = []
    if words[0] != "lock":
        options += ["--bootstrap-servers", settings.bootstrap_servers]
    if words[0] in _OF_STORES and isinstance(settings, Settings):
        placed = "--lock" in words or words[0] == "watch" or words[:2] == ("lock", "probe")
        if settings.lock_root is not None and not placed:
            options += ["--lock-root", settings.lock_root]
        if settings.s3_endpoint is not None:
            options += ["--s3-endpoint", settings.s3_endpoint]
    parts: list[str] = []
    for word in (*names, *map(_quoted, ("lakewarden", *words, *options))):
        if parts and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    found = Command(" ".join(parts))
    found.words = tuple(parts)
    return found


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}" for each in word.replace("\\", "\\\\")
    )
    return "$'" + escaped.replace("'", "\\'") + "'"
