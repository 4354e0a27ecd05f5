"""Checks of the evidence of the chaos tests: the topics, and what writers have recorded.

This file shares no code with the product, and requests nothing from an agent.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from aiokafka.structs import ConsumerRecord

Line = dict[str, Any]
BEFORE_KILL_MS = 5_000
"""A loss that an agent published in this time before it was killed may not have led to an abort any more."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time in which a process relied on a lock, on CLOCK_MONOTONIC."""

    since: float
    until: float
    who: str


@dataclass(frozen=True, slots=True)
class Loss:
    """A `lock-lost` while a grant ran under that lease."""

    transaction: str
    reason: str | None
    """The reason of the abort that its transaction got."""
    valid_until: int
    last_wall_ms: int | None
    """When a check last allowed its writer to continue the publish; None if it never began one."""


def publishes(lines: Iterable[Line]) -> list[Interval]:
    """Every publish of one table's writers, completed or stopped."""
    begun = {line["transaction"]: line["t"] for line in lines if line["what"] == "publishing"}
    ended = {line["transaction"]: line for line in lines if line["what"] in ("published", "stopped")}
    assert begun.keys() == ended.keys(), "a publish without an end"
    return [
        Interval(since, ended[each]["t"], f"{ended[each]['writer']} {each} token={ended[each]['token']}")
        for each, since in begun.items()
    ]


def overlapping(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs of intervals that overlap."""
    found = []
    furthest: Interval | None = None
    for each in sorted(intervals, key=lambda interval: interval.since):
        if furthest is not None and each.since < furthest.until:
            found.append((furthest, each))
        if furthest is None or each.until > furthest.until:
            furthest = each
    return found


def tokens_rise(lines: Iterable[Line]) -> bool:
    """Whether each publish has a larger fencing token than all that began before it."""
    begun = sorted((line["t"], line["token"]) for line in lines if line["what"] == "publishing")
    return all(earlier < later for (_, earlier), (_, later) in pairwise(begun))


def losses_under_a_grant(
    writers: Iterable[ConsumerRecord],
    decisions: Sequence[ConsumerRecord],
    audit: Iterable[ConsumerRecord],
    lines: Iterable[Line],
    killed: dict[str, int],
) -> list[Loss]:
    """Each loss of a lease under which a grant was certainly running when the agent published the loss.

    A grant runs until the agent consumes the end of its transaction. If the end was sent before the loss was published, the
    agent may have consumed it already, so that grant is left out. If the lease was adopted before its former owner published a
    loss, the grant runs under the adopting agent, so that loss is left out, too. A grant that an agent publishes after another
    one has taken the partition over does not count.
    """
    steps = [json.loads(record.value) for record in audit]
    adoptions = [step for step in steps if step.get("adopted")]
    ended = _ends(writers)
    decided = [json.loads(record.value) for record in decisions]
    aborts = {each["transaction"]: each["reason"] for each in decided if _reports_loss(each)}
    last = {
        line["transaction"]: line["wall_ms"] for line in lines if line["what"] in ("published", "stopped")
    }
    grants: dict[str, list[Line]] = defaultdict(list)
    terms: dict[int, str] = {}
    for record, each in zip(decisions, decided, strict=True):
        if each["type"] == "partition-taken":
            terms[record.partition] = each["term"]
        elif each["type"] == "commit-granted" and each["term"] == terms.get(record.partition):
            grants[each["lock_owner"]].append(each)
    found = []
    for step in steps:
        at = _at_ms(step)
        killed_at = killed.get(step["agent"])
        adopted = {each["owner"]: each["adopted"] for each in adoptions if _at_ms(each) <= at}
        if step["type"] != "lock-lost" or step["owner"] in adopted.values():
            continue
        if killed_at is not None and at > killed_at - BEFORE_KILL_MS:
            continue
        for owner in _and_those_before(step["owner"], adopted):
            for grant in grants[owner]:
                transaction = grant["transaction"]
                if _at_ms(grant) <= at < ended.get(transaction, float("inf")):
                    found.append(
                        Loss(transaction, aborts.get(transaction), step["valid_until"], last.get(transaction))
                    )
    return found


def _ends(writers: Iterable[ConsumerRecord]) -> dict[str, float]:
    """When each transaction's writer sent the event that ended it."""
    ended: dict[str, float] = {}
    for record in writers:
        event = json.loads(record.value)
        if event["type"] in ("commit-completed", "transaction-abandoned"):
            ended.setdefault(event["transaction"], record.timestamp)
    return ended


def _reports_loss(decision: Line) -> bool:
    return decision["type"] == "abort" and decision["reason"] in ("lease-lost", "outcome-unknown")


def _and_those_before(owner: str, adopted: dict[str, str]) -> list[str]:
    chain = [owner]
    while chain[-1] in adopted:
        chain.append(adopted[chain[-1]])
    return chain


def _at_ms(event: Line) -> float:
    return datetime.fromisoformat(event["at"]).timestamp() * 1000
