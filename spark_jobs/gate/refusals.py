"""The words for a commit that nobody allowed: what happened, to whom, and what to do next."""

from __future__ import annotations

from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import AgentUnreachable, GrantTimeout, LeaseLost, OutcomeUnknown
from lakewarden.spark_jobs.gate.progress import ExpiredLease

MAX_CAUSE = 300
"""Characters of a failed publish's own error: a store's answer can be a page."""


def no_agent(timeout: float, channel: Channel, facts: str) -> AgentUnreachable:
    """Kafka took the intent, and nobody answered."""
    return AgentUnreachable(
        f"no agent answered the commit-intent within {timeout:g} s; nothing was computed; start one that allows this "
        f"table (`lakewarden agent --allow`), or, if this writer has lost conflicts before, see `lakewarden status` whether "
        f"it waits in line; then restart the query; {facts} "
        f"brokers={channel.bootstrap_servers} topic={channel.topics.writers}"
    )


def not_admitted(timeout: float, heartbeat_error: str | None, facts: str) -> GrantTimeout:
    """The line in front didn't move."""
    return GrantTimeout(
        f"not admitted within {timeout:g} s: the writers ahead have not ended, or no agent runs"
        f"{_heartbeat_hint(heartbeat_error)}; see `lakewarden status`, then restart the query; {facts}"
    )


def not_granted(timeout: float, heartbeat_error: str | None, facts: str) -> GrantTimeout:
    """Everything is staged, and the grant didn't come."""
    return GrantTimeout(
        f"no grant within {timeout:g} s{_heartbeat_hint(heartbeat_error)}; nothing was committed; "
        f"see `lakewarden status` for who is ahead, then restart the query; {facts}"
    )


def _heartbeat_hint(heartbeat_error: str | None) -> str:
    """Why the wait may have been in vain: `heartbeat_error` is how this writer's last heartbeat failed, None where it did not."""
    return (
        ""
        if heartbeat_error is None
        else f"; this writer's heartbeats don't reach Kafka ({heartbeat_error}): look at the brokers"
    )


def lease_expired(lapsed: ExpiredLease, facts: str) -> LeaseLost:
    """A grant came, and its lease had run out, or isn't one that this writer can count."""
    held = lapsed.held
    how = (
        f"it names seq {held.seq}, which this writer never sent"
        if lapsed.late_seconds is None
        else f"its lease of {held.lease_seconds:g} s ran out {lapsed.late_seconds:.1f} s ago on this writer's clock"
    )
    return LeaseLost(
        f"grant refused: {how}; nothing was published under it; begin a new transaction; {facts} "
        f"grant={held.grant} token={held.token}"
    )


def outcome_unknown(error: Exception, facts: str, *, asked: bool) -> OutcomeUnknown:
    """The publish raised, and nobody can say whether it took effect."""
    why = " ".join(str(error).split())[:MAX_CAUSE] or type(error).__name__
    advice = (
        "a new transaction asks the table first"
        if asked
        else "look whether the table has it, before the batch is written again"
    )
    return OutcomeUnknown(
        f"the publish failed and may have reached the table all the same: {why}; nothing was claimed and no file "
        f"removed; {advice}; {facts}",
        retriable=asked,
    )
