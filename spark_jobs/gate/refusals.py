"""Texts of the errors for a commit without permission: what happened, to which transaction, and what to do next.

`facts` ends every message: table, writer and transaction as `key=value`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lakewarden.handlers.writers_log import MAX_NAMESAKES
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import (
    MAX_NAMED,
    AgentUnreachable,
    AlreadyCommitted,
    GateError,
    GrantTimeout,
    LeaseLost,
    OutcomeUnknown,
    correction,
    repetition,
)
from lakewarden.spark_jobs.gate.progress import ExpiredLease

MAX_CAUSE = 300
"""Characters of a failed publish's own error: a store's answer can be a page."""


@dataclass(frozen=True, slots=True)
class ConnectionErrors:
    """The last errors of a transaction's background work; None where the last try succeeded."""

    heartbeats: str | None
    decisions: str | None
    stood_still: str = ""
    """As `LoopThread.stood_still`."""

    @property
    def hint(self) -> str:
        """Name the errors: the agent may have taken the writer for lost, or its answer may not have been read."""
        sent = (
            ""
            if self.heartbeats is None
            else f"; this writer's heartbeats don't reach Kafka ({self.heartbeats})"
        )
        read = "" if self.decisions is None else f"; this writer can't read decisions ({self.decisions})"
        check = ": check the brokers and their security settings" if sent or read else ""
        return f"{sent}{read}{check}{self.stood_still}"


def no_agent(timeout: float, channel: Channel, errors: ConnectionErrors, facts: str) -> AgentUnreachable:
    """Kafka has the intent, and no agent answered it."""
    return AgentUnreachable(
        f"no agent answered the commit-intent within {timeout:g} s; nothing was computed; start an agent that allows this "
        f"table (`lakewarden agent --tables`); if this writer lost conflicts before, it may be queued: see "
        f"`lakewarden status`; then restart the query{errors.hint}; {facts} "
        f"brokers={channel.bootstrap_servers} topic={channel.topics.writers}"
    )


def new_query(batch: int, others: Sequence[str], facts: str) -> GateError:
    """The query begins behind batch 0, and the others are its job by another query id, or its query id by another job name."""
    which = list(dict.fromkeys(others))
    job, _, query = which[-1].rpartition(":")
    metadata = f'write {{"id":"{query}"}} into it, with writer={job!r}'
    if len(which) > 1:
        metadata = 'write {"id":"…"} into it, with id and name of the one that this query was (`lakewarden ledger show`)'
    named = " and ".join(which)
    if len(which) >= MAX_NAMESAKES:
        named += ", perhaps among others"
    return GateError(
        f"this query begins with batch {batch}; ledger and table show no batch of it, but batches of {named}, which may be the "
        f"same: nothing was written; if the checkpoint has lost its file `metadata`, {metadata}; if it was copied, give "
        "this query one of its own; if the batches are others, pass new_writer=True to `foreach_batch` until one is committed; "
        f"then start the query again (docs/recovery.md#who-a-writer-is); {facts}"
    )


def older_checkpoint(found: AlreadyCommitted, last: int) -> GateError:
    """The first batch of a query's run is committed, and so is a later one."""
    source = "the table" if found.committed_transaction is None else "the agent's ledger"
    return GateError(
        f"this query begins with batch {found.batch_id}, and {source} has its batch {last}: its checkpoint is of an older day, "
        "or another query has its id; nothing was written, because Spark may cut the batches otherwise, and rows would be "
        f"missing; to skip what is committed, run {correction(found.table, found.writer, last)}; to write it again, roll the "
        f"table back, unless the sink upserts, then {repetition(found.table, found.writer, found.batch_id)} "
        f"(docs/recovery.md#who-a-writer-is); table={found.table} writer={found.writer}"
    )


@dataclass(frozen=True, slots=True)
class OverdueWait:
    """A wait that took too long: whose, for which writers, and what else its driver has open (`facts` of each).

    `ahead` is empty if the driver has nothing else open, or if those writers have just ended, perhaps by their own timeout.
    """

    table: str
    writer: str
    ahead: tuple[str, ...]
    holding: tuple[str, ...]

    def timeout(self, what: str, advice: str, facts: str) -> GrantTimeout:
        """The error. It is retriable if others may wait for this driver in turn (docs/decisions/0059)."""
        if self.ahead:
            ahead = ", ".join(f"writer {name!r}" for name in self.ahead[:MAX_NAMED])
            what = f"{what}: it waits for {ahead}"
        if self.holding:
            advice = (
                f"this driver also has open: {'; '.join(self.holding[:MAX_NAMED])}; if other writers wait for that, "
                "neither can go on: open the transactions of several tables one after the other; end what is open, then retry"
            )
        return GrantTimeout(
            f"{what}; {advice}; {facts}", table=self.table, writer=self.writer, retriable=bool(self.holding)
        )


def not_admitted(timeout: float, wait: OverdueWait, errors: ConnectionErrors, facts: str) -> GrantTimeout:
    """The transaction is queued, and its turn didn't come."""
    unknown = "" if wait.ahead else ": the transactions ahead have not ended, or no agent runs"
    what = f"not admitted within {timeout:g} s{errors.hint}{unknown}"
    return wait.timeout(what, "see `lakewarden status`, then restart the query", facts)


def not_granted(timeout: float, wait: OverdueWait, errors: ConnectionErrors, facts: str) -> GrantTimeout:
    """Everything is staged, and the grant didn't come."""
    advice = "`lakewarden status` shows the transactions ahead; then restart the query"
    return wait.timeout(f"no grant within {timeout:g} s{errors.hint}; nothing was committed", advice, facts)


def interrupted(awaited: str, facts: str) -> GrantTimeout:
    """The program cancelled the wait."""
    return GrantTimeout(f"the program cancelled the wait for the {awaited}; nothing was published; {facts}")


def lease_expired(expired: ExpiredLease, facts: str) -> LeaseLost:
    """A grant arrived without a lease that this writer can rely on, or its lease expired since."""
    lease = expired.lease
    cause = (
        f"it names seq {lease.seq}, which this writer never sent"
        if expired.late_seconds is None
        else f"its lease of {lease.lease_seconds:g} s expired {expired.late_seconds:.1f} s ago on this writer's clock"
    )
    return LeaseLost(
        f"grant not usable: {cause}; nothing was published under it; begin a new transaction; {facts} "
        f"grant={lease.grant} token={lease.token}"
    )


def ended(facts: str) -> LeaseLost:
    """A callback received the grant after the body had ended."""
    return LeaseLost(
        f"the transaction ended before its grant was used; nothing was published under it; {facts}"
    )


def committed_twice(facts: str, *, published: bool) -> GateError:
    """The body commits a second time, by a second sink for example. `published`: the first commit is in the table."""
    lost = (
        "; the first commit is in the table, and its batch counts as committed, so a restart won't write the rest of it; "
        "to repeat the batch, correct the ledger (`lakewarden ledger correct`)"
        if published
        else ""
    )
    return GateError(
        "a transaction commits once, inside its block: write everything of the batch by one sink, or give each sink a "
        f"transaction and a writer name of its own{lost}; {facts}"
    )


def nested(outer: str, facts: str) -> GateError:
    """The body of a transaction opens another one that could wait for it, or that lets others wait for the outer grant."""
    return GateError(
        "this transaction is opened, or commits, inside another one, and both could wait for ever: open it after the other one "
        "has ended; nested ones must be opened before the outer commit(), of another table, and both opened and committed in the "
        f"order of the tables' URIs, or committed one after the other; outer: {outer}; {facts}"
    )


def outcome_unknown(error: Exception, facts: str, *, recognisable: bool) -> OutcomeUnknown:
    """The publish raised, and it is unknown whether it took effect. `recognisable`: the sink can look up its table."""
    cause = " ".join(str(error).split())[:MAX_CAUSE] or type(error).__name__
    advice = (
        "a new transaction looks the batch up in the table first"
        if recognisable
        else "check whether the table contains it before the batch is written again"
    )
    return OutcomeUnknown(
        f"the publish failed and may have reached the table: {cause}; nothing was reported as committed, and no file was "
        f"removed; {advice}; {facts}",
        retriable=recognisable,
    )
