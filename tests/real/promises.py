"""Checks of the promises G1 to G3 and of the protocol, from the records of the topics.

Shares no code with the agent. What counts in the log is decided here by the rules of docs/protocol.md ("Which events count"),
because a stranger may have published records, too: an event counts if its key is its table and its writer is that of the intent;
a completion, if it names a grant of its transaction. A decision counts if it names the transaction, its table and its writer, and
is in their partition.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from aiokafka.structs import ConsumerRecord

from lakewarden.events import (
    WRITER_EVENT,
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    Undecodable,
    decode,
)

Id = tuple[str, str]
"""A transaction's table and id."""


@dataclass(slots=True)
class TransactionLog:
    """All records of one transaction. Offsets in `writers` and in `decisions` are never compared with each other."""

    table: str
    writer: str
    intent: int
    touched: set[tuple[str, str]] = field(default_factory=set)
    requested: bool = False
    completed: int | None = None
    ended: int | None = None
    """The offset of its completion or abandonment."""
    decided: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def decisions(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """The decisions of one type: offset and fields."""
        return [(offset, fields) for offset, fields in self.decided if fields["type"] == kind]

    def grants(self) -> set[str]:
        return {fields["grant"] for _, fields in self.decisions("commit-granted")}

    def touch(self, markers: Iterable[Marker]) -> None:
        """Add markers to its footprint."""
        self.touched.update((each.partition, each.file_group) for each in markers)

    def lapsed(self) -> int | None:
        """The offset in `decisions` of its grant's lapse, or None."""
        return next((o for o, f in self.decisions("abort") if f["reason"] == "outcome-unknown"), None)


def transactions(
    writers: Iterable[ConsumerRecord], decisions: Iterable[ConsumerRecord]
) -> dict[Id, TransactionLog]:
    """All transactions that have an intent."""
    decided = _decided(decisions)
    found: dict[Id, TransactionLog] = {}
    for record in writers:
        event = decode(WRITER_EVENT, record.value, key=record.key or b"")
        if isinstance(event, Undecodable):
            continue
        name = (event.table, event.transaction)
        if isinstance(event, CommitIntent) and name not in found:
            answers = decided[record.partition, event.table, event.transaction, event.writer]
            found[name] = TransactionLog(event.table, event.writer, record.offset, decided=answers)
        if (history := found.get(name)) is None or history.writer != event.writer:
            continue
        match event:
            case CommitIntent(scope=markers) | MarkerCreated(markers=markers):
                history.touch(markers)
            case CommitRequested(markers=markers):
                history.touch(markers)
                history.requested = True
            case CommitCompleted(grant=grant):
                if history.completed is None and grant in history.grants():
                    history.completed = history.ended = record.offset
            case TransactionAbandoned() if history.ended is None:
                history.ended = record.offset
            case _:
                pass
    return found


def _decided(
    decisions: Iterable[ConsumerRecord],
) -> dict[tuple[int, str, str, str], list[tuple[int, dict[str, Any]]]]:
    """The decisions by partition, table, transaction and writer. Those of an agent that had been replaced don't count."""
    found: dict[tuple[int, str, str, str], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    terms: dict[int, str] = {}
    for record in decisions:
        fields = json.loads(record.value)
        if fields["type"] == "partition-taken":
            terms[record.partition] = fields["term"]
        elif fields["term"] == terms.get(record.partition, fields["term"]):
            name = (record.partition, fields["table"], fields["transaction"], fields["writer"])
            found[name].append((record.offset, fields))
    return found


def everyone(_: str) -> bool:
    """Every writer."""
    return True


def check(found: dict[Id, TransactionLog], *, answered: Callable[[str], bool] = everyone) -> None:
    """Check every promise that the log can prove. `answered`: the writers whose every event must have its answer."""
    tables: dict[str, list[tuple[str, TransactionLog]]] = defaultdict(list)
    for (table, transaction), history in found.items():
        _check_answers(transaction, history, all_answered=answered(history.writer))
        tables[table].append((transaction, history))
    for each in tables.values():
        _check_one_grant(each)
        _check_no_overlap(each)
        _check_one_victim(each)


def _check_answers(transaction: str, history: TransactionLog, *, all_answered: bool) -> None:
    decisions = [fields["type"] + ":" + fields.get("reason", "") for _, fields in history.decided]
    where = f"{transaction} of {history.table}: {decisions}"
    assert len(history.decisions("admitted")) <= 1, f"admitted twice: {where}"
    assert len(history.decisions("commit-granted")) <= 1, f"granted twice: {where}"
    assert len(history.decisions("already-committed")) <= 1, f"skipped twice: {where}"
    kinds = {each for each in ("admitted", "already-committed") if history.decisions(each)}
    assert len(kinds) <= 1, f"two kinds of answer: {where}"
    aborts = history.decisions("abort")
    for granted_at, _ in history.decisions("commit-granted"):
        assert kinds == {"admitted"}, f"granted but not admitted: {where}"
        assert all(offset > granted_at for offset, _ in aborts), f"aborted before it was granted: {where}"
        after = {fields["reason"] for _, fields in aborts}
        assert after <= {"outcome-unknown", "lease-lost", "superseded"}, f"a granted victim: {where}"
    if all_answered:
        gave_up_waiting = history.ended is not None and history.completed is None
        assert kinds or aborts or gave_up_waiting, f"no answer to its intent: {where}"
        if history.requested and history.ended is None:
            assert history.decisions("commit-granted") or aborts, f"no answer to its request: {where}"


def _check_one_grant(table: list[tuple[str, TransactionLog]]) -> None:
    """G1 by the order of the log: when a grant is published, the agent knows that the one before it has ended."""
    grants = sorted(
        (offset, fields["cause_offset"], transaction)
        for transaction, history in table
        for offset, fields in history.decisions("commit-granted")
    )
    known = dict(table)
    for (_, _, before), (offset, cause_offset, after) in pairwise(grants):
        history = known[before]
        ended = history.ended is not None and history.ended <= cause_offset
        lapsed = history.lapsed()
        assert ended or (lapsed is not None and lapsed < offset), (
            f"{after} was granted while the grant of {before} ran"
        )


def _check_no_overlap(table: list[tuple[str, TransactionLog]]) -> None:
    """G2: of two committed transactions that overlap, one was admitted after the other had landed."""
    landed = [(transaction, history) for transaction, history in table if history.completed is not None]
    for (one, first), (two, second) in combinations(landed, 2):
        if first.touched & second.touched:
            assert _after(first, second) or _after(second, first), (
                f"{one} and {two} overlap: {sorted(first.touched & second.touched)}"
            )


def _after(earlier: TransactionLog, later: TransactionLog) -> bool:
    """Whether `later` was admitted after `earlier` had landed."""
    [(offset, admitted)] = later.decisions("admitted")
    lapsed = earlier.lapsed()
    return (earlier.completed or 0) <= admitted["cause_offset"] or (lapsed is not None and lapsed < offset)


def _check_one_victim(table: list[tuple[str, TransactionLog]]) -> None:
    """G3: no two transactions were aborted because of each other."""
    lost_to: dict[str, set[str]] = {
        transaction: {
            entry["other_transaction"]
            for _, fields in history.decisions("abort")
            if fields["reason"] == "conflict"
            for entry in fields["conflicts"]
        }
        for transaction, history in table
    }
    for transaction, others in lost_to.items():
        for other in others:
            assert transaction not in lost_to.get(other, ()), f"{transaction} and {other} aborted each other"
