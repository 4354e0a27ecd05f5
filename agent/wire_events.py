"""The stamp of the agent's events: what the core that decides them does not know.

Whatever the core decides about events that the decoder accepts becomes a record of at most `MAX_RECORD_BYTES`, key included.
Texts that may come from elsewhere (a store's answer, an entry of the ledger) are cut here.
"""

from typing import Any, TypeVar, assert_never

from lakewarden import events
from lakewarden.agent.clock import fresh_id, monotonic, utc_now
from lakewarden.handlers.lease import machine as lease

MAX_EVIDENCE_CHARACTERS = 128_000
"""Characters of all names in one record. In JSON a control character has six bytes, so the record stays below 1 MB."""
MAX_DETAIL = 4_000
"""Characters of a text that operators read: a store's answer can be a page."""
MAX_RECORD_BYTES = 1_000_000
"""Limit of key and value. Kafka's default limit is 1,048,588 bytes of a batch, which adds less than 1 KB to one record."""

E = TypeVar("E", bound=events.EventBase)


def stamped(event: E, agent: str, term: str) -> E:
    """The event as the agent publishes it: with an id, the time, the agent and the term, and with what fits into a record."""
    kind: type[Any] = type(event)
    fields = {**event.__dict__, "event_id": fresh_id(), "at": utc_now()}
    fields |= {name: value for name, value in (("agent", agent), ("term", term)) if name in fields}
    for name, limit in (("detail", MAX_DETAIL), ("holder", MAX_DETAIL), ("version", events.MAX_VERSION)):
        if fields.get(name) is not None:
            fields[name] = fields[name][:limit]
    if fields.get("conflicts"):
        fields["conflicts"] = _fitting(fields["conflicts"])
    published: E = kind.model_construct(**fields)
    return published


def _fitting(conflicts: tuple[events.ConflictEntry, ...]) -> tuple[events.ConflictEntry, ...]:
    """The first entries whose names fit into a record (`MAX_EVIDENCE_CHARACTERS`), at least one."""
    left = MAX_EVIDENCE_CHARACTERS
    for count, each in enumerate(conflicts):
        left -= (
            len(each.partition) + len(each.file_group) + len(each.other_transaction) + len(each.other_writer)
        )
        if left < 0 and count:
            return conflicts[:count]
    return conflicts


def lock_event(
    agent: str,
    table: str,
    lock: str,
    step: lease.Confirmed | lease.Released | lease.LeaseEnded | lease.LockDenied,
) -> events.AuditEventUnion:
    """The audit event of a lock's step, with the number of requests and the time that it took."""
    fields: dict[str, Any] = {
        **events.UNSTAMPED,
        "table": table,
        "agent": agent,
        "lock": lock,
        "requests": step.cost.requests,
        "duration_ms": round(max(0.0, monotonic() - step.cost.since) * 1000, 3),
    }
    kind: type[events.AuditEventUnion]
    match step:
        case lease.Confirmed(what=what, lease=held):
            kind = events.LockRenewed if what == "renewed" else events.LockAcquired
            fields |= {"owner": held.record.owner, "valid_until": held.record.valid_until}
            if what != "renewed" and (former := held.former) is not None:
                fields |= {"adopted": former.owner, "fenced": former.fenced}
        case lease.LockDenied(why=why, kind=denied, holder=holder, held_until=until):
            kind = events.LockRefused
            fields |= {"owner": "", "valid_until": until or 0, "detail": why, "holder": holder}
            fields["waiting"] = denied == "waiting"
        case lease.Released(owner=owner, valid_until=until, why=why):
            kind = events.LockReleased
            fields |= {"owner": owner, "valid_until": until, "detail": why}
        case lease.LeaseEnded(owner=owner, valid_until=until, why=why, holder=holder):
            kind = events.LockLost
            fields |= {"owner": owner, "valid_until": until, "detail": why, "holder": holder}
        case _:
            assert_never(step)
    return stamped(kind.model_construct(**fields), agent, "")
