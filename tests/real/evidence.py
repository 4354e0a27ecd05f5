"""What the chaos tests conclude from the evidence: the topics, the writers' and the holders' own notes. Nothing asks an agent.

Shares no code with the product.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from aiokafka.structs import ConsumerRecord

Line = dict[str, Any]
SAME_DEATH_MS = 1_000
"""A loss told so shortly before its agent was killed may have had no time to be told to the writer."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Somebody relied on a lock from then until then, on CLOCK_MONOTONIC."""

    since: float
    until: float
    who: str


@dataclass(frozen=True, slots=True)
class Loss:
    """A `lock-lost` while a grant ran under that lease, and what became of it."""

    transaction: str
    told: str | None
    """Reason of the abort that its transaction got."""
    valid_until: int
    last_wall_ms: int | None
    """When its writer was last allowed to go on with its publish; None where it never began one."""


def publishes(lines: Iterable[Line]) -> list[Interval]:
    """Every publish of one table's writers, complete or stopped."""
    begun = {line["transaction"]: line["t"] for line in lines if line["what"] == "publishing"}
    ended = {line["transaction"]: line for line in lines if line["what"] in ("published", "stopped")}
    assert begun.keys() == ended.keys(), "a publish without an end"
    return [
        Interval(since, ended[each]["t"], f"{ended[each]['writer']} {each} token={ended[each]['token']}")
        for each, since in begun.items()
    ]


def holdings(lines: Iterable[Line], killed_at: float | None) -> list[Interval]:
    """Every stretch in which a foreign holder relied on the lock."""
    begun = {line["owner"]: line["from"] for line in lines}
    ended = {line["owner"]: line["to"] for line in lines if "to" in line}
    for owner in begun.keys() - ended.keys():
        assert killed_at is not None, f"a holding without an end: {owner}"
        ended[owner] = killed_at
    return [Interval(since, ended[owner], f"foreign holder {owner}") for owner, since in begun.items()]


def overlapping(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Neighbours in time that were at it at once."""
    found = []
    furthest: Interval | None = None
    for each in sorted(intervals, key=lambda interval: interval.since):
        if furthest is not None and each.since < furthest.until:
            found.append((furthest, each))
        if furthest is None or each.until > furthest.until:
            furthest = each
    return found


def hand_overs(ours: Iterable[Interval], theirs: Iterable[Interval]) -> int:
    """How often the lock went from one side to the other."""
    sides = [side for _, side in sorted([(x.since, 0) for x in ours] + [(x.since, 1) for x in theirs])]
    return sum(before != after for before, after in pairwise(sides))


def tokens_rise(lines: Iterable[Line]) -> bool:
    """Whether each publish bears a larger fencing token than all that began before it."""
    begun = sorted((line["t"], line["token"]) for line in lines if line["what"] == "publishing")
    return all(earlier < later for (_, earlier), (_, later) in pairwise(begun))


def losses_under_a_grant(
    writers: Iterable[ConsumerRecord],
    decisions: Iterable[ConsumerRecord],
    audit: Iterable[ConsumerRecord],
    notes: Iterable[Line],
    killed: dict[str, int],
) -> list[Loss]:
    """Each loss of a lease under which a grant was certainly still running when the agent told it.

    A grant runs until its transaction's end is read: an end that was sent before the loss was told may have been read or
    not, so that grant is left out. Where a lease was adopted before its former owner told of a loss, the grant runs under
    the adopter, and that loss says nothing.
    """
    steps = [json.loads(record.value) for record in audit]
    adoptions = [step for step in steps if step.get("adopted")]
    ended = _ends(writers)
    decided = [json.loads(record.value) for record in decisions]
    aborts = {each["transaction"]: each["reason"] for each in decided if _is_word_of_loss(each)}
    last = {
        line["transaction"]: line["wall_ms"] for line in notes if line["what"] in ("published", "stopped")
    }
    grants: dict[str, list[Line]] = defaultdict(list)
    for each in decided:
        if each["type"] == "commit-granted":
            grants[each["lock_owner"]].append(each)
    found = []
    for step in steps:
        at = _at_ms(step)
        death = killed.get(step["agent"])
        adopted = {each["owner"]: each["adopted"] for each in adoptions if _at_ms(each) <= at}
        if step["type"] != "lock-lost" or step["owner"] in adopted.values():
            continue
        if death is not None and at > death - SAME_DEATH_MS:
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
    """When each transaction's writer sent its end."""
    ended: dict[str, float] = {}
    for record in writers:
        event = json.loads(record.value)
        if event["type"] in ("commit-completed", "transaction-abandoned"):
            ended.setdefault(event["transaction"], record.timestamp)
    return ended


def _is_word_of_loss(decision: Line) -> bool:
    return decision["type"] == "abort" and decision["reason"] in ("lease-lost", "outcome-unknown")


def _and_those_before(owner: str, adopted: dict[str, str]) -> list[str]:
    chain = [owner]
    while chain[-1] in adopted:
        chain.append(adopted[chain[-1]])
    return chain


def _at_ms(event: Line) -> float:
    return datetime.fromisoformat(event["at"]).timestamp() * 1000
