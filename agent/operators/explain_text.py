"""An explanation as text. Each line of a step: its place in the log, the time since the intent, what happened and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from lakewarden.agent.operators.explain import Candidate
from lakewarden.agent.time_text import utc_time
from lakewarden.events import ConflictEntry, Marker
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.timeline import (
    Blocker,
    EventRef,
    Explanation,
    Outcome,
    SharedPlace,
    TransactionRef,
)
from lakewarden.handlers.table.transactions import Phase

MOST_NAMED = 3
"""Places and names in one line; `--output json` has more."""
MOST_CANDIDATES = 20
"""Lines in the list of matching transactions, which is only there to choose from."""

UUID_LENGTH = 36
NOTABLE_WAIT_MS = 500
"""Shorter waits for the lock or an agent are not printed: the grant itself takes some milliseconds through Kafka."""


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """The whole explanation."""
    transaction = explanation.transaction
    batch = "" if transaction.batch_id is None else f", batch {transaction.batch_id}"
    touched = _count(explanation.markers, "file group")
    yield f"transaction  {transaction.id}"
    yield f"writer       {transaction.writer}{batch}"
    yield f"table        {explanation.table}"
    yield f"outcome      {final_outcome(explanation)}"
    yield f"touched      {touched}; {_heartbeats(explanation.heartbeats)}{_repeated(explanation.repeated)}"
    yield ""
    rows = story(explanation)
    places = max((len(place) for place, _, _ in rows), default=0)
    times = max((len(time) for _, time, _ in rows), default=0)
    for place, time, text in rows:
        yield f"{place:<{places}}  {time:>{times}}  {text}"
    if explanation.others:
        yield ""
        yield from _others(explanation)
    yield from _attempts(explanation)


def story(explanation: Explanation) -> list[tuple[str, str, str]]:
    """The steps: where the record is, when it was, and what happened."""
    return [(_place(step), _time(explanation, step), _text(step)) for step in explanation.steps]


def candidate_lines(candidates: list[Candidate]) -> Iterator[str]:
    """The matching transactions, the most recent of them."""
    shown = candidates[-MOST_CANDIDATES:]
    width = max(len(each.transaction) for each in shown)
    for each in shown:
        batch = "" if each.batch_id is None else f", batch {each.batch_id}"
        at = timestamp(each.at.timestamp() * 1000)
        yield f"{each.transaction:<{width}}  {at}  writer {each.writer}{batch}, table {each.table}"


def timestamp(epoch_ms: float) -> str:
    """UTC, to the millisecond."""
    return utc_time(epoch_ms).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


# -- before and after the steps ----------------------------------------------------------------------------------------


def final_outcome(explanation: Explanation) -> str:
    """How the transaction ended, in one line."""
    outcome = explanation.outcome
    if explanation.waits_for:
        awaited = "admission" if outcome.phase is Phase.QUEUED else "grant"
        return f"waits for its {awaited}, behind {_blockers(explanation.waits_for)}"
    if outcome.phase is Phase.QUEUED:
        return "no agent has answered its intent yet"
    if outcome.phase is Phase.WAITING:
        return "waits for its grant: no transaction is ahead; it waits for the table's lock, or no agent runs"
    return _outcome(outcome)


def _heartbeats(heartbeats: timeline.Heartbeats) -> str:
    first, last, gap_after = heartbeats.first, heartbeats.last, heartbeats.gap_after
    if not heartbeats.count or first is None or last is None:
        counted = "no heartbeats"
    else:
        counted = f"{_count(heartbeats.count, 'heartbeat')} (writers:{first.offset} to writers:{last.offset})"
    if gap_after is None:
        return counted
    return f"{counted}; longest gap between its events {_seconds(heartbeats.longest_gap_ms)}, after writers:{gap_after.offset}"


def _repeated(repeated: int) -> str:
    return f"; {_count(repeated, 'event')} delivered again, without effect" if repeated else ""


def _place(step: timeline.Step) -> str:
    record = step.record
    first = getattr(step, "first", record)
    until = f"-{record.offset}" if first.offset != record.offset else ""
    return f"{record.topic}:{first.offset}{until}"


def _time(explanation: Explanation, step: timeline.Step) -> str:
    opened = next((each.record for each in explanation.steps if isinstance(each, timeline.Opened)), None)
    if opened is None or isinstance(step, timeline.Opened):
        return timestamp(step.record.recorded_ms)
    first = getattr(step, "first", step.record)
    return f"{(first.recorded_ms - opened.recorded_ms) / 1000:+.3f} s"


def _others(explanation: Explanation) -> Iterator[str]:
    yield "other transactions"
    for each in explanation.others:
        shared = f"; {_count(each.places, 'shared place')}" if each.places else ""
        yield f"  {_name(each.transaction)}: {_outcome(each.outcome)}{shared}"


def _attempts(explanation: Explanation) -> Iterator[str]:
    if len(explanation.attempts) < 2:
        return
    yield ""
    batch = explanation.transaction.batch_id
    yield f"attempts of batch {batch}" if batch is not None else "the writer's next transaction"
    for each in explanation.attempts:
        this = each.transaction.id == explanation.transaction.id
        if batch is None and this:
            continue
        mark = "  <- this one" if this else ""
        yield f"  {each.transaction.id} at writers:{each.transaction.sequence}: {_outcome(each.outcome)}{mark}"


# -- one line for each step --------------------------------------------------------------------------------------------


def _text(step: timeline.Step) -> str:  # noqa: C901, PLR0912 - one case for each kind of step
    match step:
        case timeline.Opened():
            return _opened(step)
        case timeline.Touched(events=events, markers=markers, new=new, partitions=partitions):
            some_new = "" if new == markers else f", {new} of them new"
            return f"{_count(markers, 'marker')} in {_count(events, 'event')}{some_new}: {_partitions(partitions)}"
        case timeline.GrantRequested(markers=markers):
            last = f", with {_count(markers, 'last marker')}" if markers else ""
            return f"requests its grant{last}"
        case timeline.Completed(grant=grant, version=version, phase_before=phase_before):
            named = "" if version is None else f" as version {version}"
            if grant is None:
                return f"the watcher reports the commit{named}"
            return f"the writer reports the commit{named}{_unexpected(phase_before)}"
        case timeline.Abandoned(reason=reason):
            return f"the writer abandons it: {reason}"
        case timeline.AbortRequested(operator=operator, reason=reason):
            return f"operator {operator} requests its abort: {reason}"
        case timeline.Ignored(type=kind, events=events, phase_before=phase_before):
            return f"{_count(events, kind)} without effect: {_standing(phase_before)}"
        case timeline.Admitted(
            agent=agent, waited_ms=waited, freed_by=freed_by, reserved=reserved, turn=turn
        ):
            after = "" if freed_by is None else f" after {_seconds(waited)} in the queue: {_ended(freed_by)}"
            kept = (
                f"; reserved for it, because its writer is protected: {_partitions(reserved)}"
                if reserved
                else ""
            )
            place = "" if turn is None else f", turn {turn}"
            return f"admitted by agent {agent}{place}{after}{kept}"
        case timeline.Granted():
            return _granted(step)
        case timeline.Renewed(times=times, lease_seconds=lease, seq=seq, lock_owner=owner):
            often = "" if times == 1 else f" {times} times"
            return f"grant lease renewed{often} by agent {step.agent}: {lease:.1f} s from seq {seq}{_covered(owner)}"
        case timeline.Skipped(committed_transaction=committed, version=version):
            named = "" if version is None else f" as version {version}"
            return f"nothing to do: the batch is already committed, by {committed}{named}"
        case timeline.Void(agent=agent, type=kind, reason=reason, taken_by=taken_by, taken_at=taken_at):
            why = "" if reason is None else f" ({reason})"
            since = "" if taken_at is None else f" at decisions:{taken_at.offset}"
            return f"DOES NOT COUNT: {kind}{why} by agent {agent}, after agent {taken_by} had taken over the partition{since}"
        case timeline.Aborted():
            return _aborted(step)
        case timeline.Waiting(awaited=awaited, blockers=blockers):
            return f"waits for its {awaited}, behind {_blockers(blockers)}"
        case timeline.Met():
            return _met(step)
        case timeline.Won(victim=victim, lost_conflict=lost_conflict, cause=cause, reason=reason):
            why = _lost_conflict(victim, lost_conflict, cause)
            return f"wins against {_name(victim)}, which is aborted ({reason}): {why}"
        case timeline.TakenOver(agent=agent):
            return f"agent {agent} took over the partition"
        case timeline.LockStep():
            return _lock(step)
        case _:
            assert_never(step)


def _opened(step: timeline.Opened) -> str:
    scope = f", scope {_few([_marker(each) for each in step.scope], step.scope_size)}" if step.scope else ""
    lock = f", lock {step.lock}" if step.lock else ""
    reason = f" ({' '.join(step.admission_reason.split())})" if step.admission_reason else ""
    before = (
        f"; open before it: {_few([_name(each) for each in step.alongside], step.open_before)}"
        if step.open_before
        else "; no other transaction was open"
    )
    if step.observed:
        return (
            f"seen by a watcher: its writer doesn't use the gate, rule {step.conflict_rule}{scope}, "
            f"a heartbeat every {step.heartbeat_seconds:g} s{before}"
        )
    return (
        f"intent: {step.admission}{reason}, priority {step.priority}, rule {step.conflict_rule}{scope}{lock}, "
        f"a heartbeat every {step.heartbeat_seconds:g} s{before}"
    )


def _unexpected(phase_before: Phase | None) -> str:
    if phase_before is Phase.GRANTED:
        return ""
    if phase_before is Phase.UNKNOWN:
        return "; its grant lease had expired before, but the commit is in the table"
    if phase_before is Phase.COMMITTED:
        return " again"
    return f", WITHOUT A GRANT: {_standing(phase_before)}"


def _granted(step: timeline.Granted) -> str:
    after = "" if step.freed_by is None else f": {_ended(step.freed_by)}"
    unblocked = (
        f", {_seconds(step.unblocked_ms)} of that with no transaction ahead"
        if step.unblocked_ms >= NOTABLE_WAIT_MS
        else ""
    )
    return (
        f"commit granted by agent {step.agent} {_seconds(step.waited_ms)} after its request{after}{unblocked}; grant lease "
        f"{step.lease_seconds:.1f} s from its seq {step.seq}, fencing token {step.record.offset}{_covered(step.lock_owner)}"
    )


def _covered(lock_owner: str | None) -> str:
    return "" if lock_owner is None else f", under lock owner {_short(lock_owner)}"


def _aborted(step: timeline.Aborted) -> str:
    detail = f": {step.detail}" if step.detail else ""
    if step.phase_before is Phase.GRANTED and step.reason == "outcome-unknown":
        return f"GRANT LEASE EXPIRED{detail} (agent {step.agent})"
    if step.phase_before is Phase.GRANTED:
        return (
            f"GRANT REVOKED ({step.reason}){detail} (agent {step.agent}); "
            "it counts until its writer reports the outcome or its grant lease expires"
        )
    if step.phase_before is Phase.ABORTED:
        return f"abort repeated ({step.reason}) by agent {step.agent}"
    retry = "retriable" if step.retriable else "not retriable"
    losses = f", {_count(step.losses, 'conflict')} lost in a row" if step.losses else ""
    head = f"ABORTED ({step.reason}) by agent {step.agent}, {retry}{losses}"
    if not step.lost_conflicts:
        return f"{head}{detail}{_caused(step.cause)}"
    reasons = "; and ".join(
        _lost_conflict(None, each, step.cause) for each in step.lost_conflicts[:MOST_NAMED]
    )
    more = len(step.lost_conflicts) - MOST_NAMED
    others = f"; and {_count(more, 'more winner')}" if more > 0 else ""
    return f"{head}: {reasons}{others}{_detected(step)}"


def _detected(step: timeline.Aborted) -> str:
    after, age = step.detected_after_ms, step.age_seconds
    detected = "" if after is None else f"; detected {after:.1f} ms after the agent read the marker"
    return detected if age is None else f"{detected}, {age:.1f} s after it read the intent"


def _lost_conflict(victim: TransactionRef | None, lost: timeline.LostConflict, cause: timeline.Cause) -> str:
    """`victim` is None if it is the explained transaction itself."""
    victim_name = "it" if victim is None else victim.writer
    places = _few([_entry(each) for each in lost.entries], lost.places)
    return f"{_evidence(lost, cause, victim_name, places)}; {_rule(lost, victim_name)}"


def _evidence(lost: timeline.LostConflict, cause: timeline.Cause, victim: str, places: str) -> str:
    """Which events brought the two to the same place; the event that led to the abort comes first."""
    event, winner = cause.event, _name(lost.winner)
    victim_event, winner_event = lost.victim_event, lost.winner_event
    if event is not None and event == victim_event:
        whose = "its" if victim == "it" else f"{victim}'s"
        before = "" if winner_event is None else f" with {_event(winner_event)}"
        return f"{whose} {_event(event)} touched {places}, which {winner} had touched{before}"
    if event is not None and event == winner_event:
        before = "" if victim_event is None else f" with {_event(victim_event)}"
        second = f"{event.type} of {winner} at writers:{event.record.offset}"
        return f"{second} touched {places}, which {victim} had touched{before}"
    by_victim = "" if victim_event is None else f", {victim} with {_event(victim_event)}"
    by_winner = "" if winner_event is None else f", {winner} with {_event(winner_event)}"
    found = (
        f"a check of the log up to writers:{cause.offset}"
        if event is None
        else f"{event.writer}'s {_event(event)}"
    )
    return f"both touched {places}{by_victim}{by_winner}, detected with {found}"


def _rule(lost: timeline.LostConflict, victim: str) -> str:
    winner = lost.winner.writer
    match lost.victim_rule:
        case "landed" if lost.winner_phase is Phase.UNKNOWN:
            return f"{winner} may have committed since {victim} began"
        case "landed":
            return f"{winner} has committed since {victim} began"
        case "observed":
            return f"{winner} knows nothing of lakewarden, and can't be asked to stop"
        case "granted":
            return f"{winner} holds the grant, and a granted transaction is never the victim"
        case "protected":
            return f"{winner} is protected, because it lost several conflicts in a row"
        case "priority":
            return f"{winner} has the higher priority"
        case "sequence":
            older = _count(lost.offsets_older or 0, "offset")
            return f"{winner} is older by {older}, and the younger transaction loses"
        case None:
            return f"{winner} is no longer in the log"
        case _:
            assert_never(lost.victim_rule)


def _met(step: timeline.Met) -> str:
    places = _few([_shared(each) for each in step.shared], step.places)
    other = f"{_name(step.other)} ({_phase(step.phase)})"
    order = (
        f"{other} had touched the same" if step.came_second == "mine" else f"{other} then touched the same"
    )
    judged = (
        "a conflict, but neither is aborted at this point"
        if step.conflict
        else f"no conflict by rule {step.rule}"
    )
    return f"{order}: {places}; {judged}"


def _lock(step: timeline.LockStep) -> str:
    detail = f": {step.detail}" if step.detail else ""
    times = "" if step.times == 1 else f", {step.times} times"
    until = timestamp(step.valid_until)
    match step.type:
        case "lock-acquired":
            adopted = "" if step.adopted is None else f", adopted from owner {_short(step.adopted)}"
            return f"agent {step.agent} acquired the table's lock as owner {_short(step.owner)}{adopted}, until {until}"
        case "lock-lost":
            holder = f"; owner {_short(step.holder)} holds it now" if step.holder else ""
            return f"agent {step.agent} LOST the table's lock{detail}{holder}"
        case _:
            holder = f", which owner {_short(step.holder)} holds until {until}" if step.holder else ""
            return f"agent {step.agent} could not acquire the table's lock{holder}{times}{detail}"


# -- parts of a line ---------------------------------------------------------------------------------------------------


def _caused(cause: timeline.Cause) -> str:
    if cause.event is None:
        return f"; by a check, with the log read up to writers:{cause.offset}"
    return f"; caused by {_event(cause.event)}"


def _event(event: EventRef) -> str:
    return f"{event.type} at {event.record.topic}:{event.record.offset}"


def _ended(blocker: timeline.LastBlocker) -> str:
    return f"{_name(blocker.transaction)} {_outcome(blocker.outcome)}"


def _blockers(blockers: tuple[Blocker, ...]) -> str:
    return _few([_blocker(each) for each in blockers], len(blockers))


def _blocker(blocker: Blocker) -> str:
    name = _name(blocker.transaction)
    places = _few([_shared(each) for each in blocker.shared], len(blocker.shared))
    on = f" on {places}" if blocker.shared else ""
    match blocker.reason:
        case "computing":
            return f"{name}, which is computing{on}"
        case "ahead in the queue":
            return f"{name}, which is ahead in the queue{on}"
        case "granted":
            return f"{name}, which holds the grant{on}"
        case "publishing":
            return f"{name}, an older transaction of its writer, which may still be publishing"
        case "earlier turn":
            return f"{name}, whose turn is earlier and which has not ended{on}"
        case _:
            assert_never(blocker.reason)


def _outcome(outcome: Outcome) -> str:
    at = "" if outcome.record is None else f" at {outcome.record.topic}:{outcome.record.offset}"
    version = "" if outcome.version is None else f" as version {outcome.version}"
    if outcome.reason == "already-committed" and outcome.phase is not None:
        return f"nothing to do{at}: its batch was already committed{version}"
    return f"{_phase_text(outcome)}{version}{at}"


def _phase_text(outcome: Outcome) -> str:
    if outcome.phase is None:
        return "its intent is no longer in the log"
    revoked = ", but revoked" if outcome.phase is Phase.GRANTED and outcome.reason else ""
    unexplained = outcome.reason is None or outcome.phase is Phase.UNKNOWN
    return f"{_phase(outcome.phase)}{revoked}{'' if unexplained else f' ({outcome.reason})'}"


def _phase(phase: Phase) -> str:
    return {
        Phase.ACTIVE: "computing",
        Phase.WAITING: "waiting for its grant",
        Phase.UNKNOWN: "outcome unknown",
    }.get(phase, phase.value)


def _standing(phase: Phase | None) -> str:
    """What a transaction was when an event came that has no effect on it."""
    return "its intent is not in the log" if phase is None else f"it was {_phase(phase)}"


def _name(transaction: TransactionRef) -> str:
    return f"{transaction.writer} ({transaction.id})"


def _short(owner: str) -> str:
    """The first block of a UUID, which is enough to distinguish owners; any other owner in full."""
    return owner.split("-", 1)[0] if len(owner) == UUID_LENGTH else owner


def _partition(partition: str) -> str:
    return partition or "(unpartitioned)"


def _partitions(partitions: tuple[str, ...]) -> str:
    return _few([_partition(each) for each in partitions], len(partitions))


def _file_group(partition: str, file_group: str) -> str:
    return f"{_partition(partition)} {file_group}"


def _marker(marker: Marker) -> str:
    return _file_group(marker.partition, marker.file_group)


def _entry(entry: ConflictEntry) -> str:
    operations = f"{entry.operation}/{entry.other_operation}"
    return f"{_file_group(entry.partition, entry.file_group)} ({operations})"


def _shared(shared: SharedPlace) -> str:
    return _file_group(shared.partition, shared.file_group)


def _few(names: list[str], count: int) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if count <= MOST_NAMED else f"{shown} and {count - MOST_NAMED} more"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"
