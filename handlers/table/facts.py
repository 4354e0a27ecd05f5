"""What an event or a published decision changes in a table's state.

This module makes no decisions. The same code runs live and during a replay, so a replay rebuilds the same state. Every fact
advances the table's `moment` by one, even if it changes nothing else.

Which events count (`why_ignored`). A client may publish any transaction id, so an event counts only for what the log has:

| event | counts if |
| --- | --- |
| any event of a transaction that the state has | its `writer` is the one of the intent |
| `commit-intent` of a transaction that the state has | never; it is reported unless it is that intent, delivered again |
| `commit-completed` | it also names the grant of that transaction: a running or lapsed one, or that of an ended transaction |
| `commit-completed` of an observed transaction | it names no grant, and the instant is not one of the gate's |
| `commit-requested` of an observed transaction | never: it is not granted |
| `ledger-corrected` | always; it concerns no transaction |

An event that doesn't count changes nothing but the moment; the agent reports it. In particular, the ledger changes only by a
completion whose grant is in the log, and records the batch that the intent named, and by an operator's correction
(docs/decisions/0020). After a correction, completions before it don't count: a replay may read them, while the ledger has what
came later.

Observed transactions (docs/decisions/0033):

1. An observed transaction is active from its intent on. Its batch, priority, admission and lock are ignored.
2. Its completion is a commit of the table, whatever was decided about the transaction: if its outcome was unknown, or the
   agent had forgotten it, its footprint counts as committed from the completion on. Until then, the checkpoint holds its
   intent, as that of a lapsed transaction.
3. A transaction of the gate may announce its `instant`, or name it as the `version` of its commit. What a watcher reports of that
   instant counts for nothing, whether it came before or after. The last `MAX_CLOSED` instants are remembered.

Why this loses no commit (promise G6): a completion that counts needs its intent and its grant.

- The checkpoint holds the oldest open intent, and a granted transaction is open. So a batch that was committed while no agent
  ran has its intent and its grant in the replay.
- A lapsed transaction is not open. The checkpoint holds its intent for `LATE_COMPLETION_SECONDS` longer, because its writer may
  still report. The state remembers the grants of the last `MAX_CLOSED` ended transactions.
- A completion that is read in a replay and whose intent is older than the checkpoint belongs to a transaction that had ended
  before the checkpoint was committed. The ledger had its batch by then.
- A completion that is later than that is reported, and the batch is found in the table where the sink can look it up.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, islice, takewhile
from typing import assert_never

from lakewarden import events
from lakewarden.handlers.table.conflicts import touches_meet
from lakewarden.handlers.table.footprints import Footprints, Overlap
from lakewarden.handlers.table.ledger import CommittedBatch, Correction
from lakewarden.handlers.table.state import (
    LATE_COMPLETION_SECONDS,
    MAX_CLOSED,
    MAX_KEPT_EVIDENCE,
    MAX_LOST_ON,
    MAX_LOST_ON_CHARACTERS,
    Lapsed,
    TableState,
)
from lakewarden.handlers.table.transactions import (
    ADMITTED,
    LANDED,
    OPEN,
    AbortRequest,
    Closed,
    Freed,
    Grant,
    Phase,
    Touch,
    Transaction,
    observed_instant,
)

ID_USED = "an earlier intent has used this transaction's id; use a new one for each attempt"


def apply_event(
    state: TableState, event: events.WriterEventUnion, offset: int, now: float
) -> Iterable[Overlap]:
    """Apply a writer's event and return the overlaps of its markers with other transactions.

    A repeated event changes at most `last_event_at`. An event of a closed transaction, or one that doesn't count, changes
    nothing, except that a late `commit-completed` that counts enters the ledger.
    """
    state.moment += 1
    if why_ignored(state, event) is not None:
        return []
    transaction = state.transactions.get(event.transaction)
    match event:
        case events.CommitIntent():
            return _open_transaction(state, event, offset, now)
        case events.CommitCompleted(grant=None):
            return _apply_observed_commit(state, event, transaction, offset, now)
        case events.CommitCompleted():
            _apply_completion(state, event, transaction, offset)
        case events.LedgerCorrected():
            _apply_correction(state, event, offset)
        case events.TransactionAbandoned():
            state.lapsed.pop(event.transaction, None)
            if transaction is not None and transaction.phase is not Phase.COMMITTED:
                close(state, transaction, _closed(Phase.ABORTED, transaction))
        case _:
            if transaction is not None and transaction.phase in OPEN:
                return _apply_to_open(state, event, transaction, offset, now)
    return []


def _apply_to_open(
    state: TableState,
    event: events.MarkerCreated | events.WriterHeartbeat | events.CommitRequested | events.AbortRequested,
    transaction: Transaction,
    offset: int,
    now: float,
) -> Iterable[Overlap]:
    if isinstance(event, events.AbortRequested):
        if transaction.abort_request is None:
            transaction.abort_request = AbortRequest(event.event_id, event.operator, event.reason)
        return []
    transaction.last_event_at = now
    if isinstance(event, events.MarkerCreated | events.WriterHeartbeat) and event.instant is not None:
        _note_instant(state, transaction, event.instant)
    match event:
        case events.WriterHeartbeat(seq=seq):
            transaction.seq = max(transaction.seq, seq)
            return []
        case events.MarkerCreated(markers=markers):
            if transaction.phase is Phase.QUEUED:
                state.note_change(transaction.id)  # with markers, it gets no reservation
            return _add_markers(state, transaction, markers, offset)
        case events.CommitRequested(seq=seq, markers=markers):
            transaction.seq = max(transaction.seq, seq)
            if transaction.requested < 0:
                transaction.requested, transaction.requested_id = state.moment, event.event_id
            state.note_change(transaction.id)
            if transaction.phase is Phase.ACTIVE:
                state.enter(transaction, Phase.WAITING)
            return _add_markers(state, transaction, markers, offset)
        case _:
            assert_never(event)


def why_ignored(state: TableState, event: events.WriterEventUnion) -> str | None:
    """Why an event doesn't count, as text; None if it does."""
    if isinstance(event, events.LedgerCorrected):
        return None
    known = state.transactions.get(event.transaction) or state.closed.get(event.transaction)
    if known is None:
        completed = isinstance(event, events.CommitCompleted)
        return "the agent knows no intent of this transaction" if completed else None
    if known.writer != event.writer:
        return f"the transaction is of writer {known.writer!r}, the event of {event.writer!r}"
    if known.observed:
        named = isinstance(event, events.CommitCompleted) and event.grant is not None
        forbidden = named or isinstance(event, events.CommitRequested)
        return "a watcher reports this transaction, so it is never granted" if forbidden else None
    if isinstance(event, events.CommitIntent) and known.intent_id not in (None, event.event_id):
        return ID_USED
    if isinstance(event, events.CommitCompleted) and event.grant is None:
        return "the completion names no grant, and the transaction is not observed"
    if isinstance(event, events.CommitCompleted) and event.grant != known.granted:
        found = "no grant" if known.granted is None else f"grant {known.granted!r}"
        return f"the log has {found} for this transaction, and the completion names {event.grant!r}"
    return None


def is_expected(state: TableState, event: events.WriterEventUnion) -> bool:
    """Whether an event that doesn't count needs no report.

    A watcher that was restarted repeats the table's last commits. The agent has forgotten them, or they are the gate's own.
    """
    if not isinstance(event, events.CommitCompleted) or event.grant is not None:
        return False
    if event.transaction in state.transactions:
        return False
    closed = state.closed.get(event.transaction)
    return closed is None or closed.duplicate_of is not None


def apply_decision(state: TableState, decision: events.DecisionEventUnion, now: float) -> None:
    """Apply a decision: one just made, or one read back from the log.

    A decision about an unknown transaction changes nothing, except that an `unknown-transaction` abort is remembered. Nor
    does one about another writer's transaction with the same id: its intent is older than the checkpoint, and a stranger has
    used its id.
    """
    state.moment += 1
    transaction = state.transactions.get(decision.transaction)
    if transaction is not None and transaction.writer != decision.writer:
        return
    if transaction is None:
        if isinstance(decision, events.Abort) and decision.reason == "unknown-transaction":
            # Published once: the writer finds the answer to further events in the log.
            keep_closed(state, decision.transaction, _closed_by(decision, decision.writer, None))
        return
    match decision:
        case events.Admitted(reserved=reserved):
            if transaction.phase is Phase.QUEUED:
                state.note_change(transaction.id)
                state.enter(transaction, Phase.ACTIVE if transaction.requested < 0 else Phase.WAITING)
                transaction.admit(decision, state.moment)
                _add_markers(state, transaction, reserved, None)
        case events.CommitGranted(grant=grant, lease_seconds=lease_seconds, seq=seq, lock_owner=lock_owner):
            if transaction.phase in OPEN:
                state.note_change(transaction.id)
                state.enter(transaction, Phase.GRANTED)
                transaction.granted = grant
                transaction.grant = Grant(
                    grant, now, now + lease_seconds, lock_owner, seq, moment=state.moment
                )
        case events.GrantRenewed(grant=grant, lease_seconds=lease_seconds, seq=seq, lock_owner=lock_owner):
            running = transaction.grant
            if running is not None and running.id == grant:
                running.deadline = max(running.deadline, now + lease_seconds)
                running.seq = max(running.seq, seq)
                running.lock_owner = lock_owner or running.lock_owner
        case events.AlreadyCommitted():
            close(state, transaction, _closed(Phase.COMMITTED, transaction))
        case events.Abort():
            _apply_abort(state, transaction, decision, now)
        case _:
            assert_never(decision)


def close(state: TableState, transaction: Transaction, closed: Closed) -> None:
    """Remove a transaction and keep how it ended."""
    note_end(state, transaction, counts=closed.reason not in ("not-allowed", "conflict"))
    state.footprints.remove(transaction)
    state.remove(transaction)
    transaction.phase = closed.phase
    keep_closed(state, transaction.id, closed)
    if any(each.began <= transaction.began for each in state.admitted()):
        return  # Whatever landed since then still matters to that one. Usually it is one of the first.
    drop_old_evidence(state)


def note_end(state: TableState, transaction: Transaction, *, counts: bool = True) -> None:
    """Note the end of an open transaction, before its phase changes: whom it has overtaken, and that others may go on.

    One that was aborted with `conflict` has overtaken no other: the winner may do so. Nor has one with `not-allowed`: a replay
    doesn't know what it touched (`memory.py`, rule 4).
    """
    state.note_change(transaction.id)
    if transaction.phase is Phase.GRANTED:
        state.grant_ended = Freed(state.moment, transaction.id)
    if not counts or not state.in_phase[Phase.QUEUED] or transaction.phase not in ADMITTED:
        return

    def overtakes(mine: Touch, theirs: Touch) -> bool:
        other = theirs.transaction
        return (
            other.phase is Phase.QUEUED
            and other.sequence < transaction.sequence
            and touches_meet(theirs, mine)
        )

    overtaken = {each.other.transaction for each in state.footprints.overlaps(transaction, overtakes)}
    for other in overtaken:
        other.overtaken += 1
        if other.overtaken == state.settings.max_losses:
            other.aged = state.moment
            state.note_change(other.id)


def keep_closed(state: TableState, transaction: str, closed: Closed) -> None:
    """Keep how a transaction ended, for the last `MAX_CLOSED` transactions."""
    state.closed[transaction] = closed
    if len(state.closed) > MAX_CLOSED:
        del state.closed[next(iter(state.closed))]


def drop_old_evidence(state: TableState) -> None:
    """Drop a landed transaction once every open transaction began after it: none of them can lose to it.

    An observed one never loses, so nothing is kept for it, however long it is open.
    """
    landed = state.landed()
    if not landed:
        return
    oldest = min((each.began for each in state.admitted()), default=None)
    for each in landed:
        if oldest is None or each.ended < oldest:
            state.footprints.remove(each)
            state.remove(each)
            keep_closed(state, each.id, _closed(each.phase, each))


def drop_index(state: TableState) -> None:
    """Drop all footprints and the landed transactions (`memory.py`). The open ones get no footprint any more."""
    state.without_index, state.footprints = True, Footprints()
    state.recheck_all()
    for each in list(state.transactions.values()):
        each.footprint, each.offsets, each.touches = {}, {}, {}
        each.markers = each.bytes = 0
        if each.phase is Phase.GRANTED:
            each.without_index = True
        elif each.phase in LANDED:
            state.remove(each)
            keep_closed(state, each.id, _closed(each.phase, each))


def _open_transaction(
    state: TableState, event: events.CommitIntent, offset: int, now: float
) -> Iterable[Overlap]:
    if event.transaction in state.transactions or event.transaction in state.closed:
        return []
    if event.observed and (gates := state.instants.get(observed_instant(event.transaction))) is not None:
        keep_closed(state, event.transaction, _duplicate(event.writer, gates))
        return []
    transaction = Transaction(
        id=event.transaction,
        writer=event.writer,
        sequence=offset,
        intent_id=event.event_id,
        conflict_rule=event.conflict_rule,
        heartbeat_seconds=event.heartbeat_seconds,
        began=state.moment,
        opened_at=now,
        last_event_at=now,
        observed=event.observed,
    )
    if not event.observed:
        transaction.batch_id, transaction.priority = event.batch_id, event.priority
        transaction.admission, transaction.lock = event.admission, event.lock
    state.enter(transaction, Phase.OBSERVED if event.observed else Phase.QUEUED)
    state.note_change(transaction.id)
    return _add_markers(state, transaction, event.scope, offset)


def _note_instant(state: TableState, transaction: Transaction, instant: str) -> None:
    """Remember that the instant is this transaction's, and drop what a watcher has reported of it."""
    if transaction.observed or instant in state.instants:
        return
    state.instants[instant] = transaction.id
    if len(state.instants) > MAX_CLOSED:
        del state.instants[next(iter(state.instants))]
    for each in list(state.transactions.values()):
        if each.observed and observed_instant(each.id) == instant:
            state.lapsed.pop(each.id, None)
            close(state, each, _duplicate(each.writer, transaction.id))


def _duplicate(writer: str, gates: str) -> Closed:
    return Closed(Phase.ABORTED, writer, None, duplicate_of=gates)


def _add_markers(
    state: TableState, transaction: Transaction, markers: Iterable[events.Marker], offset: int | None
) -> Iterable[Overlap]:
    if state.without_index or transaction.without_index:
        return []
    return state.footprints.add(transaction, markers, offset)


def _apply_correction(state: TableState, event: events.LedgerCorrected, offset: int) -> None:
    """Enter what an operator stated. A repeated delivery, or an earlier correction in a replay, changes nothing."""
    known = state.ledger.get(event.writer)
    last = None if known is None else known.correction
    if last is not None and (event.event_id == last.event_id or offset < last.offset):
        return
    generation = 0 if known is None else known.generation
    edition = event.edition or (None if known is None else known.edition)
    corrected = CommittedBatch(
        event.batch_id, event.transaction, None, Correction(offset, event.event_id), generation, edition
    )
    state.ledger[event.writer] = corrected
    state.note_writer(event.writer)
    state.unrecorded_batches.add(event.writer)


def _apply_completion(
    state: TableState, event: events.CommitCompleted, transaction: Transaction | None, offset: int
) -> None:
    writer, batch_id = event.writer, None
    if transaction is not None and event.version is not None and len(event.version) <= events.MAX_INSTANT:
        _note_instant(state, transaction, event.version)
    state.lapsed.pop(event.transaction, None)
    if transaction is not None and transaction.phase is not Phase.COMMITTED:
        batch_id = transaction.batch_id
        note_end(state, transaction)
        if transaction.phase is not Phase.UNKNOWN:
            # After a lapse the commit counts from the lapse: it landed before the grant lease expired.
            transaction.ended = state.moment
        state.enter(transaction, Phase.COMMITTED)
        transaction.grant = None
        if state.losses.pop(writer, None):
            state.note_writer(writer)
            del state.lost_on[writer]
            state.unrecorded_losses[writer] = ""
    elif transaction is None:
        # The transaction has ended. Its commit is a fact and belongs in the ledger.
        closed = state.closed[event.transaction]
        if closed.phase is not Phase.COMMITTED and not closed.reported:
            batch_id = closed.batch_id
            phase = Phase.COMMITTED if closed.phase is Phase.UNKNOWN else closed.phase
            state.closed[event.transaction] = replace(closed, phase=phase, reported=True)
    if batch_id is not None:
        known = state.ledger.get(writer)
        correction = None if known is None else known.correction
        if correction is None or offset > correction.offset:
            batch = CommittedBatch(batch_id, event.transaction, event.version, correction)
            if known is not None:
                batch = replace(batch, generation=known.generation, edition=known.edition)
            if known is None or known.rank < batch.rank:
                enter_batch(state, writer, batch)
                state.unrecorded_batches.add(writer)
    drop_old_evidence(state)


def enter_batch(state: TableState, writer: str, batch: CommittedBatch) -> None:
    """Enter the writer's last committed batch."""
    state.ledger[writer] = batch
    state.note_writer(writer)


def _apply_observed_commit(
    state: TableState, event: events.CommitCompleted, transaction: Transaction | None, offset: int, now: float
) -> Iterable[Overlap]:
    """Apply the commit of an observed transaction, open or ended (rule 2). A repeated one changes nothing."""
    lapsed = state.lapsed.pop(event.transaction, None)
    if transaction is None:
        ended = state.closed[event.transaction]
        if ended.phase is Phase.COMMITTED:
            return []
        del state.closed[event.transaction]
        # A replay needs the intent, and begins there if the checkpoint has not passed it.
        held = None if lapsed is None or lapsed.until < now else lapsed.sequence
        transaction = Transaction(
            id=event.transaction,
            writer=event.writer,
            sequence=offset if held is None else held,
            intent_id=event.event_id,
            began=state.moment,
            opened_at=now,
            last_event_at=now,
            observed=True,
        )
        state.enter(transaction, Phase.OBSERVED)
    if transaction.phase is Phase.COMMITTED:
        return []
    state.note_change(transaction.id)
    overlaps = _add_markers(state, transaction, event.markers, offset)
    state.enter(transaction, Phase.COMMITTED)
    transaction.ended = state.moment
    drop_old_evidence(state)
    return overlaps


def _apply_abort(state: TableState, transaction: Transaction, abort: events.Abort, now: float) -> None:
    if transaction.phase in LANDED:
        return
    granted = transaction.phase is Phase.GRANTED
    if abort.reason == "outcome-unknown" and (granted or transaction.observed):
        note_end(state, transaction)
        state.enter(transaction, Phase.UNKNOWN)
        transaction.ended, transaction.grant = state.moment, None
        _await_late_completion(state, transaction, now)
        drop_old_evidence(state)
        return
    if granted:
        assert transaction.grant is not None
        transaction.grant.revoked = True
        return
    if abort.reason == "conflict":
        lost = abort.losses or state.losses.get(transaction.writer, 0) + 1
        state.losses[transaction.writer] = lost
        state.lost_on[transaction.writer] = _partitions_lost_on(state, transaction)
        state.unrecorded_losses[transaction.writer] = transaction.id
    closed = _closed_by(abort, transaction.writer, transaction.batch_id)
    closed = replace(closed, observed=transaction.observed, intent_id=transaction.intent_id)
    close(state, transaction, closed)
    if transaction.observed:
        _await_late_completion(state, transaction, now)


def _await_late_completion(state: TableState, transaction: Transaction, now: float) -> None:
    while state.lapsed and (len(state.lapsed) >= MAX_CLOSED or next(iter(state.lapsed.values())).until < now):
        del state.lapsed[next(iter(state.lapsed))]
    until = now + LATE_COMPLETION_SECONDS
    state.lapsed[transaction.id] = Lapsed(transaction.sequence, until, transaction.observed)


def _partitions_lost_on(state: TableState, transaction: Transaction) -> tuple[events.Marker, ...]:
    """The partitions in which the writer has lost since its last commit, those of this transaction first."""
    places = dict.fromkeys(
        events.Marker(partition=partition, file_group=events.ALL_FILE_GROUPS, operation=operation)
        for partition in islice(transaction.footprint, MAX_LOST_ON)
        for operation in transaction.touches
    )
    places.update(dict.fromkeys(state.lost_on.get(transaction.writer, ())))
    characters = accumulate(len(place.partition) for place in places)
    fitting = takewhile(
        lambda place: place[1] <= MAX_LOST_ON_CHARACTERS, zip(places, characters, strict=True)
    )
    return tuple(place for place, _ in islice(fitting, MAX_LOST_ON))


def _closed(phase: Phase, transaction: Transaction) -> Closed:
    return Closed(
        phase,
        transaction.writer,
        transaction.batch_id,
        granted=transaction.granted,
        observed=transaction.observed,
        intent_id=transaction.intent_id,
    )


def _closed_by(abort: events.Abort, writer: str, batch_id: int | None) -> Closed:
    return Closed(
        Phase.ABORTED,
        writer,
        batch_id,
        abort.reason,
        abort.retriable,
        abort.conflicts[:MAX_KEPT_EVIDENCE],
        abort.detail,
    )
