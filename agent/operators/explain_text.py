"""An explanation as text. Each line of a step: the time since the intent, what happened and why.

With `verbose` also places in the log, whole names and ids, and what the agent and its clients need for themselves.
"""

import re
from collections.abc import Callable, Iterator
from typing import assert_never

from lakewarden import events
from lakewarden.agent.operators.explain import Candidate
from lakewarden.agent.operators.status_text import short_names
from lakewarden.agent.time_text import counted, few, first_of, timestamp
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.life import made_by
from lakewarden.handlers.explain.timeline import (
    Because,
    Explanation,
    Outcome,
    RelatedTransaction,
    Step,
    TransactionRef,
)
from lakewarden.handlers.explain.waits import WAIT_TEXTS
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.writers_log import without_gate

MOST_NAMED = 3
"""Places and names in one line; `--output json` has more."""
MOST_CANDIDATES = 20
"""Lines in the list of matching transactions, which is only there to choose from."""

MOST_STEPS, FIRST_STEPS = 60, 20
"""Steps of a transaction, and how many of them are its first ones. A long one meets each batch of the others."""

_PLACE = re.compile(r" at (?:writers|decisions|audit):\d+")
UUID_LENGTH = 36
NOTABLE_WAIT_MS = 500
"""Shorter waits for the lock or an agent are not printed: the grant itself takes some milliseconds through Kafka."""


def explanation_lines(explanation: Explanation, *, verbose: bool = False) -> Iterator[str]:
    """The whole explanation."""
    lines = _lines(explanation, verbose=verbose)
    yield next(lines)
    yield from lines if verbose else map(_short_text, lines)


def _short_text(text: str) -> str:
    return short_names(_PLACE.sub("", text))


def _lines(explanation: Explanation, *, verbose: bool) -> Iterator[str]:
    transaction = explanation.transaction
    batch = "" if transaction.batch_id is None else f", batch {transaction.batch_id}"
    touched = counted(explanation.markers, "file group")
    repeated = counted(explanation.repeated, "event")
    yield f"transaction  {transaction.id}"
    yield f"writer       {transaction.writer}{batch}"
    yield f"table        {explanation.table}"
    yield f"outcome      {_final_outcome(explanation)}"
    again = f"; {repeated} delivered again, without effect" if explanation.repeated else ""
    yield f"touched      {touched}{again}"
    yield ""
    rows = story(explanation, verbose=verbose)
    places = max((len(place) for place, _, _ in rows), default=0)
    times = max((len(time) for _, time, _ in rows), default=0)
    for place, time, text in rows:
        yield f"{f'{place:<{places}}  ' if verbose else ''}{time:>{times}}  {text}"
    shown: Callable[[list[str], str], list[str]] = (lambda lines, _: lines) if verbose else few
    if explanation.others:
        yield from ("", "other transactions")
        yield from shown(list(_others(explanation)), "transaction")
    yield from _attempts(explanation, shown)


def story(explanation: Explanation, *, verbose: bool = False) -> list[tuple[str, str, str]]:
    """The steps: where the record is, when it was, and what happened. Of many, the first and the last."""
    this = explanation.transaction.id
    texts = (_text(step, this, verbose=verbose) for step in explanation.steps)
    rows = [
        (_place(step), _time(explanation, step), text if verbose else _short_text(text))
        for step, text in zip(explanation.steps, texts, strict=True)
    ]
    if not verbose and (left_out := len(rows) - MOST_STEPS) > 0:
        more = ("", "", f"… {counted(left_out, 'more step')}: --verbose prints them")
        rows[FIRST_STEPS : FIRST_STEPS + left_out] = [more]
    return rows


def candidate_lines(candidates: list[Candidate]) -> Iterator[str]:
    """The matching transactions, the most recent of them."""
    shown = candidates[-MOST_CANDIDATES:]
    width = max(len(each.transaction) for each in shown)
    for each in shown:
        batch = "" if each.batch_id is None else f", batch {each.batch_id}"
        at = _utc(each.at.timestamp() * 1000)
        yield f"{each.transaction:<{width}}  {at}  writer {each.writer}{batch}, table {each.table}"


def _utc(epoch_ms: float) -> str:
    return timestamp(epoch_ms).replace("T", " ")


# -- before and after the steps ----------------------------------------------------------------------------------------


def final_outcome(explanation: Explanation) -> str:
    """How the transaction ended, in one line."""
    return _short_text(_final_outcome(explanation))


def _final_outcome(explanation: Explanation) -> str:
    outcome = explanation.outcome
    if explanation.waits_for:
        awaited = "admission" if outcome.phase is Phase.QUEUED else "grant"
        return f"waits for its {awaited}, behind {_blockers(explanation.waits_for)}"
    if outcome.phase is Phase.QUEUED:
        return "no agent has answered its intent yet"
    if outcome.phase is Phase.WAITING:
        return "waits for its grant: no transaction is ahead; it waits for the table's lock, or no agent runs"
    return _outcome(outcome)


def _place(step: Step) -> str:
    first, last = step.first.offset, step.record.offset
    return f"{step.record.topic}:{first}" + (f"-{last}" if first != last else "")


def _time(explanation: Explanation, step: Step) -> str:
    this = explanation.transaction.id
    intents = (each for each in explanation.steps if isinstance(each.event, events.CommitIntent))
    opened = next((each for each in intents if each.event.transaction == this), step)
    if opened is step:
        return _utc(step.first.recorded_ms)
    return f"{(step.first.recorded_ms - opened.first.recorded_ms) / 1000:+.3f} s"


def _others(explanation: Explanation) -> Iterator[str]:
    for each in explanation.others:
        yield f"  {_name(each.transaction)}: {_outcome(each.outcome)}"


def _attempts(explanation: Explanation, shown: Callable[[list[str], str], list[str]]) -> Iterator[str]:
    attempts, this, batch = explanation.attempts, explanation.transaction.id, explanation.transaction.batch_id
    if len(attempts) < 2:
        return
    if batch is None:
        yield from ("", "the writer's next transaction")
        yield from (_attempt(each) for each in attempts if each.transaction.id != this)
        return
    yield from ("", f"attempts of batch {batch}: {len(attempts)}")
    lines = [f"{_attempt(each)}{'  <- this one' if each.transaction.id == this else ''}" for each in attempts]
    yield from shown(lines, "attempt")


def _attempt(each: RelatedTransaction) -> str:
    return f"  {each.transaction.id} at writers:{each.transaction.sequence}: {_outcome(each.outcome)}"


# -- one line for each step --------------------------------------------------------------------------------------------


def _text(step: Step, this: str, *, verbose: bool) -> str:
    """What happened, and for whom the transaction waits; of another one's event only the latter. `this`: the explained one."""
    parts = []
    if step.record.topic != "writers" or step.event.transaction == this:
        parts.append(_event_text(step, this, verbose=verbose))
    if step.because.waits_for:
        parts.append(f"waits for its {step.because.awaited}, behind {_blockers(step.because.waits_for)}")
    return "; ".join(parts)


def _event_text(step: Step, this: str, *, verbose: bool) -> str:  # noqa: C901, PLR0912 - one case for each type
    event, because = step.event, step.because
    if because.without_effect:
        return _without_effect(step)
    match event:
        case events.CommitIntent():
            return _intent(event, because, verbose=verbose)
        case events.MarkerCreated():
            markers, count = counted(because.markers or 0, "marker"), counted(step.times, "event")
            some_new = "" if because.new == because.markers else f", {because.new} of them new"
            return (
                f"{markers} in {count}{some_new}: {_few([_partition(each) for each in because.partitions])}"
            )
        case events.CommitRequested(markers=markers):
            last = f", with {counted(len(markers), 'last marker')}" if markers else ""
            return f"requests its grant{last}"
        case events.CommitCompleted(grant=grant):
            if grant is None:
                maker = "" if (found := made_by(event)) is None else f", made by {found}"
                return f"the watcher reports the commit{_version(event.version)}{maker}"
            return (
                f"the writer reports the commit{_version(event.version)}{_unexpected(because.phase_before)}"
            )
        case events.TransactionAbandoned(reason=reason, lost_to=winner):
            return f"the writer abandons it: {'' if winner is None else f'lost to {winner}; '}{reason}"
        case events.AbortRequested(operator=operator, reason=reason):
            return f"operator {operator} requests its abort: {reason}"
        case events.Admitted(agent=agent, turn=turn):
            freed_by = because.freed_by
            waited = _seconds(because.waited_ms or 0)
            after = "" if freed_by is None else f" after {waited} in the queue: {_ended(freed_by)}"
            reserved = _few([_partition(each.partition) for each in event.reserved])
            kept = f"; reserved for it, because its writer is protected: {reserved}" if reserved else ""
            place = "" if turn is None else f", turn {turn}"
            return f"admitted by agent {agent}{place}{after}{kept}"
        case events.CommitGranted():
            return _granted(step.record, event, because, verbose=verbose)
        case events.GrantRenewed(lease_seconds=lease, seq=seq, lock_owner=owner):
            often = "" if step.times == 1 else f" {step.times} times"
            return f"grant lease renewed{often} by agent {event.agent}: {lease:.1f} s from seq {seq}{_covered(owner)}"
        case events.AlreadyCommitted(committed_transaction=committed, version=version):
            return f"nothing to do: the batch is already committed, by {committed}{_version(version)}"
        case events.Abort() if event.transaction != this:
            victim = TransactionRef(event.transaction, event.writer)
            why = _lost_conflict(victim, event, because.lost_conflicts[0], because)
            return f"wins against {_name(victim)}, which is aborted ({event.reason}): {why}"
        case events.Abort():
            return _aborted(event, because, verbose=verbose)
        case events.PartitionTaken(agent=agent):
            return f"agent {agent} took over the partition"
        case events.LockAcquired() | events.LockLost() | events.LockRefused():
            return _lock(event, step.times)
        case events.WriterHeartbeat() | events.LedgerCorrected():
            raise AssertionError(f"{event.type} is not a step")
        case _:
            assert_never(event)


def _without_effect(step: Step) -> str:
    event, because = step.event, step.because
    if step.record.topic == "writers":
        return f"{counted(step.times, event.type)} without effect: {_standing(because.phase_before)}"
    why = f" ({event.reason})" if isinstance(event, events.Abort) else ""
    agent = getattr(event, "agent", "")
    since = "" if because.taken_at is None else f" at decisions:{because.taken_at.offset}"
    taken = f"after agent {because.taken_by} had taken over the partition{since}"
    return f"DOES NOT COUNT: {event.type}{why} by agent {agent}, {taken}"


def _version(version: str | None) -> str:
    return "" if version is None else f" as version {version}"


def _intent(event: events.CommitIntent, because: Because, *, verbose: bool) -> str:
    scope = f", scope {_few([place_text(each) for each in event.scope])}" if event.scope else ""
    lock = f", lock {event.lock}" if event.lock else ""
    reason = f" ({' '.join(event.admission_reason.split())})" if event.admission_reason else ""
    before = (
        f"; open before it: {_few([_name(each) for each in because.alongside], because.open_before)}"
        if because.open_before
        else "; no other transaction was open"
    )
    what = (
        "seen by a watcher: its writer doesn't use the gate"
        if event.observed
        else f"intent: {event.admission}{reason}"
    )
    more = (
        f", priority {event.priority}, rule {event.conflict_rule}, a heartbeat every {event.heartbeat_seconds:g} s"
        if verbose
        else ""
    )
    return f"{what}{more}{scope}{lock}{before}"


def _unexpected(phase_before: Phase | None) -> str:
    if phase_before is Phase.GRANTED:
        return ""
    if phase_before is Phase.UNKNOWN:
        return "; its grant lease had expired before, but the commit is in the table"
    if phase_before is Phase.COMMITTED:
        return " again"
    return f", WITHOUT A GRANT: {_standing(phase_before)}"


def _granted(
    record: timeline.RecordRef, event: events.CommitGranted, because: Because, *, verbose: bool
) -> str:
    waited, unblocked_ms = because.waited_ms or 0, because.unblocked_ms or 0
    after = "" if because.freed_by is None else f": {_ended(because.freed_by)}"
    unblocked = (
        f", {_seconds(unblocked_ms)} of that with no transaction ahead"
        if unblocked_ms >= NOTABLE_WAIT_MS
        else ""
    )
    granted = f"commit granted by agent {event.agent} {_seconds(waited)} after its request{after}{unblocked}"
    if not verbose:
        return granted
    return (
        f"{granted}; grant lease {event.lease_seconds:.1f} s from its seq {event.seq}, "
        f"fencing token {record.offset}{_covered(event.lock_owner)}"
    )


def _covered(lock_owner: str | None) -> str:
    return "" if lock_owner is None else f", under lock owner {_short(lock_owner)}"


def _aborted(event: events.Abort, because: Because, *, verbose: bool) -> str:
    detail = f": {event.detail}" if event.detail else ""
    if because.phase_before is Phase.GRANTED and event.reason == "outcome-unknown":
        return f"GRANT LEASE EXPIRED{detail} (agent {event.agent})"
    if because.phase_before is Phase.GRANTED:
        return (
            f"GRANT WITHDRAWN ({event.reason}){detail} (agent {event.agent}); "
            "it counts until its writer reports the outcome or its grant lease expires"
        )
    if because.phase_before is Phase.ABORTED:
        return f"abort repeated ({event.reason}) by agent {event.agent}"
    retry = "retriable" if event.retriable else "not retriable"
    losses = f", {counted(event.losses, 'conflict')} lost in a row" if event.losses else ""
    head = f"ABORTED ({event.reason}) by agent {event.agent}, {retry}{losses}"
    lost = because.lost_conflicts
    if not lost:
        cause = because.cause
        by = "by a check, with the log read up to" if cause is None else f"caused by {cause.type} at"
        return f"{head}{detail}; {by} writers:{event.cause_offset if cause is None else cause.record.offset}"
    reasons = "; and ".join(_lost_conflict(None, event, each, because) for each in lost[:MOST_NAMED])
    more = len(lost) - MOST_NAMED
    others = f"; and {counted(more, 'more winner')}" if more > 0 else ""
    after, age, detected = because.detected_after_ms, because.victim_age_seconds, ""
    if verbose and after is not None:
        detected = f"; detected {after:.1f} ms after the agent read the marker"
    if verbose and age is not None:
        detected += f", {age:.1f} s after it read the intent"
    return f"{head}: {reasons}{others}{detected}"


def _lost_conflict(
    victim: TransactionRef | None, abort: events.Abort, lost: timeline.LostConflict, because: Because
) -> str:
    """`victim` is None if it is the explained transaction itself."""
    victim_name = "it" if victim is None else victim.writer
    entries = [each for each in abort.conflicts if each.other_transaction == lost.winner.id]
    places = _few([f"{place_text(each)} ({each.operation}/{each.other_operation})" for each in entries])
    found = because.cause or f"a check of the log up to writers:{abort.cause_offset}"
    return f"{_evidence(lost, found, victim_name, places)}; {_rule(lost, victim_name)}"


def _evidence(lost: timeline.LostConflict, cause: timeline.EventRef | str, victim: str, places: str) -> str:
    """Which events brought the two to the same place; the event that led to the abort comes first."""
    winner, victim_event, winner_event = _name(lost.winner), lost.victim_event, lost.winner_event
    by_victim = "" if victim_event is None else f" with {_event(victim_event)}"
    by_winner = "" if winner_event is None else f" with {_event(winner_event)}"
    if cause == victim_event:
        whose = "its" if victim == "it" else f"{victim}'s"
        return f"{whose} {_event(cause)} touched {places}, which {winner} had touched{by_winner}"
    if cause == winner_event:
        second = f"{cause.type} of {winner} at writers:{cause.record.offset}"
        return f"{second} touched {places}, which {victim} had touched{by_victim}"
    both = "".join(f", {who}{how}" for who, how in ((victim, by_victim), (winner, by_winner)) if how)
    found = cause if isinstance(cause, str) else f"{cause.writer}'s {_event(cause)}"
    return f"both touched {places}{both}, detected with {found}"


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
            return f"{winner} is protected, because it lost or was overtaken several times"
        case "priority":
            return f"{winner} has the higher priority"
        case "sequence":
            older = counted(lost.offsets_older or 0, "offset")
            return f"{winner} is older by {older}, and the younger transaction loses"
        case None:
            return f"the agent's release doesn't say why {winner} won"
        case other:
            return f"{winner} won by the rule {other}"


def _lock(event: events.LockAcquired | events.LockLost | events.LockRefused, count: int) -> str:
    detail = f": {event.detail}" if event.detail else ""
    times = "" if count == 1 else f", {count} times"
    until = _utc(event.valid_until)
    holder = _short(event.holder) if event.holder else None
    match event:
        case events.LockAcquired(agent=agent, adopted=former):
            adopted = "" if former is None else f", adopted from owner {_short(former)}"
            return f"agent {agent} acquired the table's lock as owner {_short(event.owner)}{adopted}, until {until}"
        case events.LockLost(agent=agent):
            now = f"; owner {holder} holds it now" if holder else ""
            return f"agent {agent} LOST the table's lock{detail}{now}"
        case events.LockRefused(agent=agent):
            held = f", which owner {holder} holds until {until}" if holder else ""
            return f"agent {agent} could not acquire the table's lock{held}{times}{detail}"


# -- parts of a line ---------------------------------------------------------------------------------------------------


def _event(event: timeline.EventRef) -> str:
    return f"{event.type} at {event.record.topic}:{event.record.offset}"


def _ended(blocker: timeline.RelatedTransaction) -> str:
    return f"{_name(blocker.transaction)} {_outcome(blocker.outcome)}"


def _blockers(blockers: tuple[timeline.Blocker, ...]) -> str:
    found = []
    for each in blockers:
        on = f" on {_few([place_text(one) for one in each.shared])}" if each.shared else ""
        found.append(f"{_name(each.transaction)}, {WAIT_TEXTS[each.reason]}{on}")
    return _few(found)


def _outcome(outcome: Outcome) -> str:
    """How a transaction ended, or its phase; with the place in the log that says so."""
    at = f" at {outcome.record.topic}:{outcome.record.offset}" if outcome.record else ""
    version = _version(outcome.version)
    if outcome.reason == "already-committed" and outcome.phase is not None:
        return f"nothing to do{at}: its batch was already committed{version}"
    maker = "" if outcome.made_by is None else f", made by {outcome.made_by}"
    return f"{phase_text(outcome)}{version}{at}{maker}"


def phase_text(outcome: Outcome) -> str:
    """How a transaction ended, or its phase."""
    if outcome.phase is None:
        return "its intent is no longer in the log"
    if outcome.lost_to is not None:
        return f"lost to {outcome.lost_to}"
    withdrawn = ", but withdrawn" if outcome.phase is Phase.GRANTED and outcome.reason else ""
    unexplained = outcome.reason is None or outcome.phase is Phase.UNKNOWN
    return f"{_phase(outcome.phase)}{withdrawn}{'' if unexplained else f' ({outcome.reason})'}"


def _phase(phase: Phase) -> str:
    return {
        Phase.ACTIVE: "computing",
        Phase.OBSERVED: "computing",
        Phase.WAITING: "waiting for its grant",
        Phase.UNKNOWN: "outcome unknown",
    }.get(phase, phase.value)


def _standing(phase: Phase | None) -> str:
    """What a transaction was when an event came that has no effect on it."""
    return "its intent is not in the log" if phase is None else f"it was {_phase(phase)}"


def _name(transaction: TransactionRef) -> str:
    named = f"{transaction.writer} ({transaction.id})"
    return f"{transaction.id}, without the gate" if without_gate(transaction.id) else named


def _short(owner: str) -> str:
    """The first block of a UUID, which is enough to distinguish owners; any other owner in full."""
    return owner.split("-", 1)[0] if len(owner) == UUID_LENGTH else owner


def _partition(partition: str) -> str:
    return partition or "(unpartitioned)"


def place_text(marker: events.Marker | events.ConflictEntry) -> str:
    """A partition and a file group."""
    return f"{_partition(marker.partition)} {marker.file_group}"


def _few(names: list[str], count: int | None = None) -> str:
    return first_of(names, MOST_NAMED, count)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"
