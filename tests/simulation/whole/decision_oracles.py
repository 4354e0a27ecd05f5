"""What must hold of a decision that counts, judged when it is in the log. `oracles.py` has the table of all oracles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakewarden.agent.serving.partition.stopped_tables import STOPPED
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    DecisionEventUnion,
    GrantRenewed,
)
from tests.simulation.whole.histories import History
from tests.simulation.whole.log_knowledge import LogKnowledge
from tests.simulation.whole.table import LakeTable

CLEARLY_MORE = 150
"""So many markers more need more memory than all pairs of a transaction with others, in a run."""


class DecisionOracles:
    """Judges each decision by what the logs had before it, and adds it to its transaction's history."""

    def __init__(
        self,
        settings: Settings,
        tables: Mapping[str, LakeTable],
        knowledge: LogKnowledge,
        violated: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._knowledge = knowledge
        self._violated = violated

    def check(self, event: DecisionEventUnion, history: History) -> None:
        """Judge a decision that counts, about this transaction."""
        name = event.transaction
        if history.observed:
            self._check_observed(event, history)
            return
        self._check_operator(event, history)
        match event:
            case Admitted():
                if history.priority > self._settings.max_priority:
                    self._violated(
                        "priorities are limited", f"{name} has priority {history.priority}, and is admitted"
                    )
                if history.other_lock:
                    self._violated("locks stay in place", f"{name} names another lock, and is admitted")
                at, edition, _ = self._knowledge.editions.get(
                    (history.table, history.writer), (None, None, None)
                )
                if at is not None and at <= event.cause_offset and event.edition != edition:
                    self._violated(
                        "editions are kept", f"{name} is admitted with edition {event.edition}, not {edition}"
                    )
                if history.admitted or history.ended:
                    self._violated(
                        "consistent decisions", f"{name} is admitted, and was {history.ended or 'admitted'}"
                    )
                history.admitted = True
                history.touch(event.reserved, event.cause_offset)
            case CommitGranted():
                self._check_seq(event, history)
                self._check_grant(event, history)
                self._check_turn(event, history)
                self._check_beside_observed(event, history)
                history.granted = history.granted or event
            case Abort():
                self._check_abort(event, history)
            case AlreadyCommitted():
                history.skipped = True
                table = self._tables[history.table]
                if history.batch is None or table.find(history.writer, history.batch) is None:
                    self._violated(
                        "committed batch skipped", f"{name} skips batch {history.batch}, which is in no table"
                    )
            case GrantRenewed():
                self._check_seq(event, history)

    def _check_operator(self, event: DecisionEventUnion, history: History) -> None:
        """Check that the first decision after the request obeys it. If it was read in a replay, another abort may precede."""
        asked, over = history.abort_requested, history.ended is not None or history.revoked
        if asked is None or event.cause_offset < asked or over:
            return
        taken = self._knowledge.takeovers.get(event.term or "")
        replayed = taken is not None and asked < taken.end
        if not isinstance(event, Abort) or (event.reason not in ("operator", "lease-lost") and not replayed):
            what = event.reason if isinstance(event, Abort) else event.type
            self._violated(
                "operators are obeyed", f"{event.transaction} gets {what} after the request to end it"
            )

    def _check_seq(self, event: CommitGranted | GrantRenewed, history: History) -> None:
        """A writer counts its lease from when it sent the `seq`, so a grant must name one that it sent."""
        if all(seq != event.seq for offset, seq in history.seqs if offset <= event.cause_offset):
            self._violated(
                "forged events change nothing",
                f"{event.transaction} gets {event.type} with seq {event.seq}, which its writer never sent",
            )

    def _check_grant(self, event: CommitGranted, history: History) -> None:
        name = event.transaction
        taken = self._knowledge.takeovers.get(event.term or "")
        if taken is not None and taken.lacking and taken.sure and history.opened_at < taken.at:
            self._violated(
                "an incomplete log is noticed",
                f"{name} is granted; it was open at the take-over by {event.agent}, which lacked records of {taken.lacking}",
            )
        if history.granted is not None:
            self._violated(
                "consistent decisions", f"{name} is granted twice: {history.granted.grant} and {event.grant}"
            )
        if history.ended is not None:
            self._violated("consistent decisions", f"{name} is granted after abort {history.ended.reason}")
        if history.requested is None or history.requested > event.cause_offset:
            self._violated("no commit without grant", f"{name} is granted without a request")
        for offset, batch in self._knowledge.committed[history.table, history.writer]:
            known = offset <= event.cause_offset and self._knowledge.must_know(event, history, batch, offset)
            if known and history.batch is not None and history.batch <= batch:
                self._violated(
                    "committed batch skipped",
                    f"{name} is granted batch {history.batch}; {batch} is committed",
                )

    def _check_turn(self, event: CommitGranted, history: History) -> None:
        """Each open transaction with an earlier turn must end first, unless this one's priority is larger."""
        for name, other in self._knowledge.histories.items():
            earlier = other.admitted and other.admitted_at < history.admitted_at and other.is_open()
            if (
                earlier
                and history.ordered
                and other.ordered
                and other.table == history.table
                and other.priority >= history.priority
                and history.meets(other, event.cause_offset)
            ):
                self._violated(
                    "granted in turn", f"{event.transaction} is granted; {name}, admitted before it, is open"
                )

    def _check_observed(self, event: DecisionEventUnion, history: History) -> None:
        """An observed transaction reads no decision. The agent ends it only when it has been silent for too long."""
        if isinstance(event, Abort) and event.reason == "unknown-transaction" and not history.is_open():
            return  # the answer to a repeated report of one that has ended
        if not isinstance(event, Abort) or event.reason != "outcome-unknown":
            what = event.reason if isinstance(event, Abort) else event.type
            self._violated("observed ones win", f"{event.transaction} is observed, and gets {what}")
        elif history.ended is None:
            history.ended = event

    def _check_beside_observed(self, event: CommitGranted, history: History) -> None:
        """Check that the granted transaction conflicts with no observed one of rule `file-group`, as the log was at the grant."""
        cause, early = event.cause_offset, self._settings.early_detection
        for name, other in self._knowledge.histories.items():
            if not (other.observed and other.strict and other.table == history.table):
                continue
            if other.sequence > cause or not history.meets(other, cause):
                continue
            gone = other.gone_at is not None and other.gone_at <= cause
            if not gone and early and self._settings.conflict_policy == "first-intent":
                self._violated("observed ones win", f"{event.transaction} is granted; {name} is open")
            committed = other.completed is not None and history.begins_at <= other.completed <= cause
            if committed and not other.abandoned:
                self._violated("observed ones win", f"{event.transaction} is granted; {name} has committed")

    def _check_abort(self, event: Abort, history: History) -> None:
        name = event.transaction
        self._check_forged_abort(event, history)
        if event.reason == "unknown-transaction":
            if history.is_open():
                overlooked = name in self._knowledge.overlooked
                if not (history.intent_lost or overlooked or self._knowledge.may_lack(event.term)):
                    self._violated("consistent decisions", f"{name} is open, and aborted as unknown")
                elif history.granted is None:
                    history.ended = event
            return
        history.revoked = history.revoked or event.reason in ("lease-lost", "superseded")
        if (event.detail or "").startswith(STOPPED) and history.ended is not None:
            return  # a late event of a transaction that its owner has forgotten since
        if event.reason == "conflict" or (event.reason == "outcome-unknown" and event.conflicts):
            if history.granted is not None:
                self._violated("granted never aborted", f"{name} is granted, and aborted for a conflict")
            if history.ended is None:  # otherwise the abort is published again
                self._check_victim(event, history)
        if event.losses is not None:
            self._knowledge.losses[history.table, history.writer] = (event.losses, event.cause_offset)
            self._knowledge.unclear_losses.discard((history.table, history.writer))
        if history.granted is None and history.ended is None:
            history.ended = event
        elif history.ended is not None and self._knowledge.may_lack(event.term):
            pass  # the lapse of a grant that doesn't count, or the owner lacks the abort that does
        elif history.ended is not None and history.ended.reason != event.reason:
            self._violated(
                "consistent decisions", f"{name} is aborted for {event.reason} after {history.ended.reason}"
            )
        elif event.reason == "outcome-unknown" and not event.conflicts:
            history.ended = event

    def _check_forged_abort(self, event: Abort, history: History) -> None:
        """An honest writer sends no event that is refused, and only its own next intent or commit supersedes a transaction."""
        name = event.transaction
        if "memory_mb" in (event.detail or ""):
            self._check_budget_abort(event, history)
        elif event.reason == "not-allowed" and not (
            (event.detail or "").startswith(STOPPED)
            or history.priority > self._settings.max_priority
            or history.other_lock
        ):
            self._violated("forged events change nothing", f"{name} is refused: {event.detail}")
        where = (history.table, history.writer)
        batch = history.batch or 0
        by = any(
            (other.table, other.writer) == where
            and (other.order > history.order or (other.completed is not None and (other.batch or 0) >= batch))
            for other in self._knowledge.histories.values()
        )
        by = by or any(committed >= batch for _, committed in self._knowledge.committed[where])
        if event.reason == "superseded" and not by:
            self._violated("forged events change nothing", f"{name} is superseded by nothing of its writer")
        for entry in event.conflicts:
            other = self._knowledge.histories.get(entry.other_transaction)
            if other is not None and other.writer != entry.other_writer:
                continue  # a stranger's own transaction, with a used id
            mine = (entry.partition, entry.file_group) in history.touched
            theirs = other is None or any(
                partition == entry.partition and (entry.file_group in (group, "*") or group == "*")
                for partition, group in other.touched
            )
            if not (mine and theirs):
                self._violated(
                    "forged events change nothing",
                    f"{name} conflicts with {entry.other_transaction} on {entry.partition}/{entry.file_group},"
                    " which they don't share",
                )

    def _check_budget_abort(self, event: Abort, history: History) -> None:
        """Check that the largest transaction is aborted. The oldest one of a table counts with what has landed since."""
        others = [
            each
            for each in self._knowledge.histories.values()
            if each.table == history.table and each.is_open() and each is not history and not each.granted
        ]
        oldest = all(each.admitted_at > history.admitted_at for each in others if each.admitted)
        taken = self._knowledge.takeovers.get(event.term or "")
        if oldest or taken is None or event.cause_offset < taken.end:
            return  # at the end of a replay, a table may lose its whole index
        mine = history.touched_at(event.cause_offset)
        for other in others:
            theirs = other.touched_at(event.cause_offset)
            if theirs > mine + CLEARLY_MORE:
                self._violated(
                    "the memory budget holds",
                    f"{event.transaction} with {mine} markers is aborted, and another has {theirs}",
                )

    def _check_victim(self, event: Abort, history: History) -> None:
        for entry in event.conflicts:
            other = self._knowledge.histories.get(entry.other_transaction)
            if other is None or other.writer != entry.other_writer:
                continue
            history.lost_to.add(entry.other_transaction)
            if event.transaction in other.lost_to:
                self._violated("one victim", f"{event.transaction} and {entry.other_transaction} both lose")
            if entry.kind == "marker" and other.granted is None and not other.observed:
                self._check_order(event, history, entry.other_transaction, other)

    def _check_order(self, event: Abort, history: History, name: str, other: History) -> None:
        """Check the victim by design.md §4. While it is unclear whether a writer is protected, either may lose."""
        writers = {(history.table, history.writer), (other.table, other.writer)}
        if (
            self._knowledge.losses_of(other) >= self._settings.max_losses
            or max(map(self._knowledge.overtaken, (history, other))) >= self._settings.max_losses
            or writers & self._knowledge.unclear_losses
        ):
            return
        mine, theirs = (history.priority, -history.order), (other.priority, -other.order)
        if self._knowledge.losses_of(
            history
        ) >= self._settings.max_losses and not self._knowledge.has_committed_since(history):
            self._violated("right victim", f"{event.transaction} is protected, and loses to {name}")
        elif mine > theirs:
            self._violated("right victim", f"{event.transaction} {mine} loses to {name} {theirs}")
