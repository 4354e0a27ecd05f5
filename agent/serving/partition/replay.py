"""The replay of one partition: what an owner reads of the log before it decides.

1. While it loads, the owner reads the decisions and the ledger from the checkpoint on (`takeover.py`). Events that it
   consumes in that time, and entries of other agents, are kept until both have been read.
2. The replay then applies the events from the checkpoint's offset on, and each published decision after the event that its
   `cause_offset` names (`handlers/table/replay.py`). It decides nothing.
3. At the end of the log, the tables that failed or that can't be published are stopped, and each of the others decides what the
   replay has left undecided: an event whose decision was not published before the crash, for example.

**A partition is refused** if `decisions` has a record to be replayed that is an event and that this version can't decode: a newer
agent published it, and a state without it would be another one. The owner decides nothing there, and commits no checkpoint. The
agent's other partitions go on. A record that is no event at all (no JSON object with a `type`) is logged and skipped.
"""

from collections.abc import Iterable
from functools import partial

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import RecordTooLargeError
from lakewarden.agent.serving.log_records import decisions_in, decoded_all
from lakewarden.agent.serving.partition.log_seen import LogSeen, Progress
from lakewarden.agent.serving.partition.own_records import OwnRecords
from lakewarden.agent.serving.partition.tables import Tables
from lakewarden.handlers.table.machine import Replayed, replay_decision, replay_event
from lakewarden.handlers.table.memory import without_footprint, without_markers
from lakewarden.handlers.table.replay import Position, PublishedDecisions, Subject, subject
from lakewarden.handlers.table.state import TableState

log = structlog.get_logger()


class Replay:
    """What one owner has read of the log and not applied yet."""

    def __init__(
        self,
        progress: Progress,
        tables: Tables,
        records: OwnRecords,
        seen: LogSeen,
        undecodable: events.UndecodableRecords,
    ) -> None:
        self.newer: str | None = None
        """Which decision to be replayed it can't decode, because a newer agent has published it."""
        self.backlog: list[ConsumerRecord] = []
        """Events that were consumed while the owner was loading."""
        self.others_entries: list[events.LedgerRecord] = []
        """Entries of other agents that were read while the owner was loading."""
        self.until = 0
        """The end of `writers` when the decisions had been read. Before it, the owner decides nothing."""
        self.aborted: set[Subject] = set()
        """Transactions of which the log has an abort, until the end of the replay."""
        self._without_footprint: dict[Subject, int] = {}
        self.published = PublishedDecisions(Position(0, None), ())
        """The decisions that are not applied yet."""
        self._progress = progress
        self._tables = tables
        self._records = records
        self._seen = seen
        self._undecodable = undecodable

    def read_decisions(self, start: Position, records: Iterable[ConsumerRecord]) -> None:
        """Read the next decisions. `start`: the position of the first of all."""
        if self.published.start != start:
            self.published = PublishedDecisions(start, ())
        for offset, decision in decisions_in(records, self._undecodable, self._on_newer_decision):
            self.published.add(offset, decision)

    def _on_newer_decision(self, reason: str) -> None:
        self.newer = self.newer or reason

    def read_ledger(self, records: Iterable[ConsumerRecord]) -> None:
        for entry in decoded_all(events.LEDGER_EVENT, records, self._undecodable):
            self._tables.ledger.add(entry)

    def start(self, until: int, lost_ends: Iterable[tuple[int, int]]) -> None:
        """Decisions and ledger have been read. Apply what follows up to `until`. `lost_ends`: see `PublishedDecisions`."""
        self.until = until
        self.published.lost_ends = list(lost_ends)
        decided = self.published.all()
        self.aborted = {subject(each) for each in decided if isinstance(each, events.Abort)}
        self._without_footprint = without_footprint(decided)

    def apply_event(self, state: TableState, event: events.WriterEventUnion, offset: int) -> None:
        """Apply an event to its table, without deciding on it."""
        if offset <= self._without_footprint.get(subject(event), -1):
            event = without_markers(event)
        apply = partial(replay_event, state, event, offset, monotonic())
        ignored = self._tables.attempt(event.table, apply)
        self._tables.note_memory(event.table)
        if ignored is not None:
            log.warning("event.ignored", table=event.table, offset=offset, detail=ignored)

    def apply_decisions(self, up_to: int | None) -> None:
        """Apply the decisions whose cause is at most at this offset in `writers`; all that are left if it is None."""
        for decision in self.published.pop_due(up_to):
            state = self._tables.states.get(decision.table)
            if state is not None and decision.table not in self._tables.stopped:
                apply = partial(replay_decision, state, decision, monotonic())
                self._tables.attempt(decision.table, apply)
                self._tables.note_memory(decision.table)

    def finish(self) -> None:
        """The owner is live at the end of the log, and has applied all decisions: decide what they leave outstanding."""
        replayed = len(self.published)
        tables, missing = self._tables, self._seen.missing
        if missing is None:  # otherwise a grant of a former owner may be what the log lacks
            tables.locks.former_terms = self.published.terms_before(self._records.term)
        self.published = PublishedDecisions(Position(0, None), ())
        with tables.memory.held():
            self._stop_failed()
            self.aborted.clear()
            self._without_footprint.clear()
            for uri, state in list(tables.states.items()):
                if state.open() and uri not in tables.stopped:
                    tables.locks.locate(state)
                offset = self._progress.position - 1
                tables.step(uri, Replayed(monotonic(), offset, missing, tables.memory.limit))
        tables.memory.enforce()
        log.debug(
            "partition.live",
            partition=tables.number,
            offset=self._progress.position,
            tables=len(tables.states),
            decisions_replayed=replayed,
            open=sum(len(state.open()) for state in tables.states.values()),
        )

    def _stop_failed(self) -> None:
        """Abort what is open in tables that the replay has stopped, and stop those whose record a broker refused for its size."""
        tables, unpublishable = self._tables, self._records.unpublishable
        for uri in list(tables.states):
            if uri in tables.stopped:
                tables.abort_open(uri, unless=self.aborted)
            elif uri in unpublishable:
                tables.stop(uri, RecordTooLargeError(unpublishable[uri]))
