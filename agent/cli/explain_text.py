"""A transaction's story as lines for people: where in the log, how long after the intent, what happened and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import assert_never

from lakewarden.agent.operators.explain import Candidate
from lakewarden.events import ConflictEntry, Marker
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.timeline import Behind, Event, Fate, Shared, Story, Who
from lakewarden.handlers.table.transactions import Phase

MOST_NAMED = 3
"""Places and names in one line; `--output json` has more."""
MOST_CANDIDATES = 20
"""Lines of a list that is only there to be chosen from."""

UUID_LENGTH = 36
WORTH_TELLING_MS = 500
"""Of waiting for the lock or an agent; a grant's own way through Kafka takes a few."""


def story_lines(story: Story) -> Iterator[str]:
    """The whole report."""
    who = story.who
    batch = "" if who.batch_id is None else f", batch {who.batch_id}"
    yield f"transaction  {who.transaction}"
    yield f"writer       {who.writer}{batch}"
    yield f"table        {story.table}"
    yield f"outcome      {_outcome(story)}"
    yield f"touched      {_count(story.markers, 'file group')}; {_beats(story.beats)}{_repeated(story.repeated)}"
    yield ""
    rows = [(_place(step), _time(story, step), _text(step)) for step in story.steps]
    places = max((len(place) for place, _, _ in rows), default=0)
    times = max((len(time) for _, time, _ in rows), default=0)
    for place, time, text in rows:
        yield f"{place:<{places}}  {time:>{times}}  {text}"
    if story.others:
        yield ""
        yield from _others(story)
    yield from _tries(story)


def candidate_lines(candidates: list[Candidate]) -> Iterator[str]:
    """The transactions that may be meant, the newest of them."""
    shown = candidates[-MOST_CANDIDATES:]
    width = max(len(each.transaction) for each in shown)
    for each in shown:
        batch = "" if each.batch_id is None else f", batch {each.batch_id}"
        at = timestamp(each.at.timestamp() * 1000)
        yield f"{each.transaction:<{width}}  {at}  writer {each.writer}{batch}, table {each.table}"


def timestamp(epoch_ms: float) -> str:
    """UTC, to the millisecond."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


# -- frame -------------------------------------------------------------------------------------------------------------


def _outcome(story: Story) -> str:
    fate = _fate(story.fate)
    if story.waits_for:
        what = "its admission" if story.fate.phase is Phase.QUEUED else "its grant"
        return f"{fate}: waits for {what}, behind {_all_behind(story.waits_for)}"
    if story.fate.phase is Phase.QUEUED:
        return "no agent has answered its intent yet"
    if story.fate.phase is Phase.WAITING:
        return "waits for its grant: nobody is before it, so the table's lock is being waited for, or no agent runs"
    return fate


def _beats(beats: timeline.Beats) -> str:
    if not beats.count or beats.first is None or beats.last is None:
        heard = "no heartbeats"
    else:
        heard = f"{_count(beats.count, 'heartbeat')} (writers:{beats.first.offset} to writers:{beats.last.offset})"
    if beats.gap_after is None:
        return heard
    return (
        f"{heard}; longest silence {_seconds(beats.longest_gap_ms)}, after writers:{beats.gap_after.offset}"
    )


def _repeated(repeated: int) -> str:
    return (
        f"; {_count(repeated, 'repeated delivery', 'repeated deliveries')} changed nothing"
        if repeated
        else ""
    )


def _place(step: timeline.Step) -> str:
    where = step.where
    first = getattr(step, "first", where)
    until = f"-{where.offset}" if first.offset != where.offset else ""
    return f"{where.topic}:{first.offset}{until}"


def _time(story: Story, step: timeline.Step) -> str:
    began = next((each.where for each in story.steps if isinstance(each, timeline.Opened)), None)
    if began is None or isinstance(step, timeline.Opened):
        return timestamp(step.where.recorded_ms)
    first = getattr(step, "first", step.where)
    return f"{(first.recorded_ms - began.recorded_ms) / 1000:+.3f} s"


def _others(story: Story) -> Iterator[str]:
    yield "the others"
    for each in story.others:
        met = f", shared {_count(each.places, 'place')} with it" if each.places else ""
        yield f"  {_name(each.who)}: {_fate(each.fate)}{met}"


def _tries(story: Story) -> Iterator[str]:
    if len(story.attempts) < 2:
        return
    yield ""
    batch = story.who.batch_id
    yield f"tries of batch {batch}" if batch is not None else "what its writer did next"
    for each in story.attempts:
        mine = each.who.transaction == story.who.transaction
        if batch is None and mine:
            continue
        yield f"  {each.who.transaction} at writers:{each.who.sequence}: {_fate(each.fate)}{'  <- this one' if mine else ''}"


# -- one line a step ---------------------------------------------------------------------------------------------------


def _text(step: timeline.Step) -> str:
    match step:
        case (
            timeline.Opened()
            | timeline.Asked()
            | timeline.Touched()
            | timeline.Completed()
            | timeline.Abandoned()
            | timeline.Ignored()
        ):
            return _writer_text(step)
        case (
            timeline.Admitted()
            | timeline.Granted()
            | timeline.Renewed()
            | timeline.Skipped()
            | timeline.Aborted()
            | timeline.Void()
        ):
            return _decision_text(step)
        case timeline.Waiting(what=what, behind=behind):
            return f"waits for its {what}, behind {_all_behind(behind)}"
        case timeline.Met():
            return _met(step)
        case timeline.Won(victim=victim, against=against, cause=cause, reason=reason):
            return f"{_name(victim)} is aborted ({reason}) because of it: {_loss(victim, against, cause)}"
        case timeline.Taken(agent=agent):
            return f"agent {agent} took the partition over"
        case timeline.Lock():
            return _lock(step)
        case _:
            assert_never(step)


WriterStep = (
    timeline.Opened
    | timeline.Asked
    | timeline.Touched
    | timeline.Completed
    | timeline.Abandoned
    | timeline.Ignored
)
DecisionStep = (
    timeline.Admitted
    | timeline.Granted
    | timeline.Renewed
    | timeline.Skipped
    | timeline.Aborted
    | timeline.Void
)


def _writer_text(step: WriterStep) -> str:
    match step:
        case timeline.Opened():
            return _opened(step)
        case timeline.Touched(events=events, markers=markers, new=new, partitions=partitions):
            again = "" if new == markers else f", {new} of them new"
            inside = _few([each or "(unpartitioned)" for each in partitions], len(partitions))
            return f"{_count(markers, 'marker')} in {_count(events, 'event')}{again}: {inside}"
        case timeline.Asked(markers=markers):
            last = f", with {_count(markers, 'last marker')}" if markers else ""
            return f"asks for its grant{last}"
        case timeline.Completed(version=version, stood=stood):
            named = "" if version is None else f" as version {version}"
            return f"its writer says that the commit is durable{named}{_unexpected(stood)}"
        case timeline.Abandoned(reason=reason):
            return f"its writer gives up: {reason}"
        case timeline.Ignored(type=kind, events=events, stood=stood):
            why = "no intent of it is known" if stood is None else f"it was {_phase(stood)}"
            return f"{_count(events, kind)} changed nothing: {why}"
        case _:
            assert_never(step)


def _opened(step: timeline.Opened) -> str:
    scope = f", scope {_few([_marker(each) for each in step.scope], step.scope_size)}" if step.scope else ""
    lock = f", lock {step.lock}" if step.lock else ""
    before = (
        f"; open before it: {_few([_name(each) for each in step.alongside], step.open_before)}"
        if step.open_before
        else "; nobody else was open"
    )
    return (
        f"intent: {step.admission}, priority {step.priority}, rule {step.conflict_rule}{scope}{lock}, "
        f"a heartbeat every {step.heartbeat_seconds:g} s{before}"
    )


def _unexpected(stood: Phase | None) -> str:
    if stood is Phase.GRANTED:
        return ""
    if stood is Phase.UNKNOWN:
        return "; its lease had lapsed, and it landed all the same"
    if stood is Phase.COMMITTED:
        return " (said again)"
    known = "no intent of it is known" if stood is None else f"it was {_phase(stood)}"
    return f", WITHOUT A GRANT: {known}"


def _decision_text(step: DecisionStep) -> str:
    match step:
        case timeline.Admitted(agent=agent, waited_ms=waited, freed_by=freed, reserved=reserved):
            after = "" if freed is None else f" after {_seconds(waited)} in line: {_ended(freed)}"
            kept = _few([each or "(unpartitioned)" for each in reserved], len(reserved))
            kept = f"; kept for it, whose writer has lost so often: {kept}" if reserved else ""
            return f"admitted by agent {agent}{after}{kept}"
        case timeline.Granted():
            return _granted(step)
        case timeline.Renewed(times=times, lease_seconds=lease, seq=seq, lock_owner=owner):
            often = "" if times == 1 else f" {times} times"
            under = "" if owner is None else f", under lock owner {_short(owner)}"
            return f"lease renewed{often} by agent {step.agent}: {lease:.1f} s from seq {seq}{under}"
        case timeline.Skipped(committed_transaction=committed, version=version):
            named = "" if version is None else f" as version {version}"
            return f"already committed, by {committed}{named}: nothing to do"
        case timeline.Void(agent=agent, type=kind, reason=reason, taken_by=taken_by, taken_at=taken_at):
            why = "" if reason is None else f" ({reason})"
            since = "" if taken_at is None else f" at decisions:{taken_at.offset}"
            return f"DOES NOT COUNT: {kind}{why} by agent {agent}, after agent {taken_by} took the partition over{since}"
        case timeline.Aborted():
            return _aborted(step)
        case _:
            assert_never(step)


def _granted(step: timeline.Granted) -> str:
    after = "" if step.freed_by is None else f": {_ended(step.freed_by)}"
    alone = (
        f", {_seconds(step.alone_ms)} of that with nobody before it"
        if step.alone_ms >= WORTH_TELLING_MS
        else ""
    )
    covered = "" if step.lock_owner is None else f", under lock owner {_short(step.lock_owner)}"
    return (
        f"commit granted by agent {step.agent} {_seconds(step.waited_ms)} after it asked{after}{alone}; lease "
        f"{step.lease_seconds:.1f} s from its seq {step.seq}, fencing token {step.where.offset}{covered}"
    )


def _aborted(step: timeline.Aborted) -> str:
    retry = "may try again" if step.retriable else "not to be tried again as it is"
    detail = f": {step.detail}" if step.detail else ""
    if step.stood is Phase.GRANTED and step.reason == "outcome-unknown":
        return f"LEASE LAPSED{detail} (agent {step.agent})"
    if step.stood is Phase.GRANTED:
        return (
            f"GRANT REVOKED ({step.reason}){detail} (agent {step.agent}); "
            "it counts until its end is heard of, or its lease is over"
        )
    if step.stood is Phase.ABORTED:
        return f"told again that it is aborted ({step.reason}), by agent {step.agent}"
    losses = f", loss {step.losses} in a row" if step.losses else ""
    head = f"ABORTED ({step.reason}) by agent {step.agent}, {retry}{losses}"
    found = (
        ""
        if step.detected_after_ms is None
        else f"; found {step.detected_after_ms:.1f} ms after the marker was read"
    )
    spent = "" if step.age_seconds is None else f", {step.age_seconds:.1f} s after its intent was"
    if not step.against:
        by = _caused(step.cause)
        return f"{head}{detail}{by}"
    reasons = "; and ".join(_loss(None, each, step.cause) for each in step.against[:MOST_NAMED])
    more = f"; and to {len(step.against) - MOST_NAMED} more" if len(step.against) > MOST_NAMED else ""
    return f"{head}: {reasons}{more}{found}{spent}"


def _loss(victim: Who | None, against: timeline.Against, cause: timeline.Cause) -> str:
    """`victim` is None where it is the story's own transaction."""
    mine = "it" if victim is None else victim.writer
    winner = _name(against.winner)
    where = _few([_entry(each) for each in against.entries], against.places)
    return f"{_evidence(against, cause, mine, winner, where)}; {_rule(against, mine)}"


def _evidence(against: timeline.Against, cause: timeline.Cause, mine: str, winner: str, where: str) -> str:
    """By which events the two came to the same place, the one that was found out first."""
    event, my_touch, their_touch = cause.event, against.mine, against.theirs
    if event is not None and event == my_touch:
        whose = "its" if mine == "it" else f"{mine}'s"
        before = "" if their_touch is None else f" by {_event(their_touch)}"
        return f"because {whose} {_event(event)} touched {where}, which {winner} had touched{before}"
    if event is not None and event == their_touch:
        before = "" if my_touch is None else f" by {_event(my_touch)}"
        theirs = f"{event.type} of {winner} at writers:{event.where.offset}"
        return f"because {theirs} touched {where}, which {mine} had touched{before}"
    mine_by = "" if my_touch is None else f", {mine} by {_event(my_touch)}"
    theirs_by = "" if their_touch is None else f", {winner} by {_event(their_touch)}"
    found = f"a check up to writers:{cause.offset}" if event is None else f"{event.writer}'s {_event(event)}"
    return f"because both touched {where}{mine_by}{theirs_by}, found with {found}"


def _rule(against: timeline.Against, mine: str) -> str:
    other = against.winner.writer
    match against.by:
        case "landed" if against.phase is Phase.UNKNOWN:
            return f"{other} may have committed since {mine} began"
        case "landed":
            return f"{other} has committed since {mine} began"
        case "granted":
            return f"{other} holds the grant, and a granted one is never the victim"
        case "protected":
            return f"{other} has lost so often in a row that it is protected"
        case "priority":
            return f"{other} has the larger priority"
        case "sequence":
            return (
                f"{other} is older by {_count(against.offsets_older or 0, 'offset')}, and the younger loses"
            )
        case None:
            return f"{other} is not in the log any more"
        case _:
            assert_never(against.by)


def _met(step: timeline.Met) -> str:
    where = _few([_shared(each) for each in step.shared], step.places)
    first = "touched what it had touched" if step.came_second == "other" else "had touched the same"
    judged = (
        "a conflict, but nobody was to be aborted then"
        if step.conflict
        else f"no conflict by rule {step.rule}"
    )
    return f"{_name(step.who)} ({_phase(step.phase)}) {first}: {where}; {judged}"


def _lock(step: timeline.Lock) -> str:
    detail = f": {step.detail}" if step.detail else ""
    times = "" if step.times == 1 else f", {step.times} times"
    until = timestamp(step.valid_until)
    match step.type:
        case "lock-acquired":
            taken = "" if step.adopted is None else f", taken over from owner {_short(step.adopted)}"
            return f"agent {step.agent} has the table's lock, as owner {_short(step.owner)}{taken}, until {until}"
        case "lock-lost":
            holder = f"; owner {_short(step.holder)} has it" if step.holder else ""
            return f"agent {step.agent} LOST the table's lock{detail}{holder}"
        case _:
            holder = f", which owner {_short(step.holder)} holds until {until}" if step.holder else ""
            return f"agent {step.agent} did not get the table's lock{holder}{times}{detail}"


# -- words -------------------------------------------------------------------------------------------------------------


def _caused(cause: timeline.Cause) -> str:
    if cause.event is None:
        return f"; by a check, with the log read up to writers:{cause.offset}"
    return f"; caused by {_event(cause.event)}"


def _event(event: Event) -> str:
    return f"{event.type} at {event.where.topic}:{event.where.offset}"


def _ended(ended: timeline.Ended) -> str:
    return f"{_name(ended.who)} {_fate(ended.fate)}"


def _all_behind(behind: tuple[Behind, ...]) -> str:
    return _few([_behind(each) for each in behind], len(behind))


def _behind(behind: Behind) -> str:
    on = f" on {_few([_shared(each) for each in behind.shared], len(behind.shared))}" if behind.shared else ""
    match behind.why:
        case "computing":
            return f"{_name(behind.who)}, which computes{on}"
        case "earlier in the line":
            return f"{_name(behind.who)}, which stands before it in the line{on}"
        case "granted":
            return f"{_name(behind.who)}, which holds the grant{on}"
        case "publishing":
            return f"{_name(behind.who)}, its own writer's older one, which may be publishing"
        case _:
            assert_never(behind.why)


def _fate(fate: Fate) -> str:
    at = "" if fate.where is None else f" at {fate.where.topic}:{fate.where.offset}"
    version = "" if fate.version is None else f" as version {fate.version}"
    if fate.phase is None:
        return "its intent is not in the log any more"
    if fate.reason == "already-committed":
        return f"nothing to do{at}: its batch was committed before{version}"
    revoked = ", but revoked" if fate.phase is Phase.GRANTED and fate.reason else ""
    reason = "" if fate.reason is None else f" ({fate.reason})"
    return f"{_phase(fate.phase)}{revoked}{reason}{version}{at}"


def _phase(phase: Phase) -> str:
    return {
        Phase.QUEUED: "in line",
        Phase.ACTIVE: "computing",
        Phase.WAITING: "waiting for its grant",
        Phase.UNKNOWN: "ended unheard",
    }.get(phase, phase.value)


def _name(who: Who) -> str:
    return f"{who.writer} ({who.transaction})"


def _short(owner: str) -> str:
    """The first block of a UUID, enough to tell owners apart; anything else as it is."""
    return owner.split("-", 1)[0] if len(owner) == UUID_LENGTH else owner


def _where(partition: str, file_group: str) -> str:
    return f"{partition or '(unpartitioned)'} {file_group}"


def _marker(marker: Marker) -> str:
    return _where(marker.partition, marker.file_group)


def _entry(entry: ConflictEntry) -> str:
    return f"{_where(entry.partition, entry.file_group)} ({entry.operation}/{entry.other_operation})"


def _shared(shared: Shared) -> str:
    return _where(shared.partition, shared.file_group)


def _few(names: list[str], count: int) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if count <= MOST_NAMED else f"{shown} and {count - MOST_NAMED} more"


def _count(number: int, noun: str, several: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"
