"""What an owner has seen of its partition's log: what it found missing, and what must not be missing later.

- At a take-over, the gaps that `takeover.py` has found are logged, and the checkpoints carry them for some days.
- While the owner runs, it notes the last event that it has read, the last decision and the end of the ledger that Kafka has
  acknowledged. Its checkpoints have them, so that the next owner finds a gap (`handlers/table/log_gaps.py`).
- A decision or a ledger entry that is acknowledged at an offset below an earlier one shows that Kafka has lost records since
  (`cut`). The session ends, and the take-over of the next one finds out what is missing. The last checkpoint still names the
  lost record. Otherwise the log would look complete once it has grown to its former length.

**If the log is incomplete** (decision record 16), the owner replays what is left, aborts what is open without a grant, and admits
nothing in a table before it has the table's lock. It commits no checkpoint before a lock lease has passed, so that an owner that
takes over before then finds the same gap.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.clock import monotonic, utc_now
from lakewarden.agent.serving.checkpoint import Checkpoint, FoundGap, digest, recent_gaps
from lakewarden.agent.settings import Settings
from lakewarden.events import DecisionEventUnion
from lakewarden.handlers.table.log_gaps import Gap, LastRecord, missing_events
from lakewarden.handlers.table.replay import Position

Phase: TypeAlias = Literal["loading", "replaying", "live", "paused", "refused", "released"]


@dataclass(slots=True)
class Progress:
    """The owner's phase (`owner.py`) and its place in `writers`."""

    phase: Phase = "loading"
    position: int = 0
    """Offset of the next event."""
    record: ConsumerRecord | None = None
    """The record whose event is being decided."""

    @property
    def last_applied(self) -> int:
        """Offset of the last event that was applied: of the one that is being decided, if there is one."""
        return self.position - 1 if self.record is None else self.record.offset


log = structlog.get_logger()

_LOG_LOST = (
    "records that Kafka had acknowledged are lost, or were removed. Open transactions without a known grant are aborted "
    "(unknown-transaction) and start again; no table admits another before its lock is acquired. Check the topic's settings, "
    "recent leader elections, and whether the cluster was restored"
)
_LEDGER_LOST = (
    "the ledger has lost entries. If an agent was running then, it has recorded them again (ledger.restored). Otherwise a batch "
    "whose sink can't ask its table may be written twice: restore the entries from a backup if there is one"
)


class LogSeen:
    """What one owner has seen of `writers`, `decisions` and `ledger`."""

    def __init__(self, number: int, settings: Settings) -> None:
        self._number = number
        self._settings = settings
        self._topics = settings.topics
        self._read: LastRecord | None = None
        """The last event that it has read."""
        self._published: LastRecord | None = None
        """Its last decision that Kafka has acknowledged, before any was lost."""
        self._entry: LastRecord | None = None
        """Its last ledger entry that Kafka has acknowledged, before any was lost."""
        self.ledger_lost = False
        """Whether the ledger has lost entries since the take-over, as far as it has been noticed."""
        self.ledger_beginning = 0
        """Offset of the ledger's first record at the take-over."""
        self.ledger_end = 0
        """Offset after its last ledger entry that Kafka has acknowledged."""
        self._gaps: tuple[FoundGap, ...] = ()
        """All gaps, with those of the ledger and of former owners, for the checkpoints."""
        self._missing: tuple[Gap, ...] = ()
        self._no_checkpoint_before = 0.0
        """In monotonic seconds."""
        self.decisions_end = 0
        """Offset after the last decision that Kafka has acknowledged."""
        self.cut: str | None = None
        """How the log has lost records while the owner was running, once it has noticed."""

    @property
    def ledger_extent(self) -> tuple[int, int]:
        """Where the ledger begins, and the offset after the owner's last entry."""
        return self.ledger_beginning, self.ledger_end

    @property
    def missing(self) -> str | None:
        """What `writers` and `decisions` lacked at the take-over, as text; None if they were complete."""
        return "; ".join(each.description for each in self._missing) or None

    @property
    def writers_replaced(self) -> bool:
        """Whether offsets of `writers` that are known from before mean nothing: it was created again, or has lost its end."""
        return any(
            each.topic == self._topics.writers and each.problem in ("end-lost", "replaced")
            for each in self._missing
        )

    @property
    def lost_ends(self) -> list[tuple[int, int]]:
        """The lost ends of `writers`. Each has the offset after the decisions that came before, and the end that was left."""
        return [
            (each.decisions_end, each.gap.found)
            for each in self._gaps
            if each.gap.topic == self._topics.writers and each.gap.problem == "end-lost"
        ]

    @property
    def checkpoint_allowed(self) -> bool:
        """Whether a checkpoint may be committed: not before a lock lease after a take-over with gaps."""
        return monotonic() >= self._no_checkpoint_before

    def compare(
        self,
        checkpoint: Checkpoint | None,
        gaps: Sequence[Gap],
        decided: Iterable[DecisionEventUnion],
        end: int,
        ledger_beginning: int,
    ) -> None:
        """Note and log what the log lacks. `gaps`: of what `checkpoint`, the former owner's, relies on.

        `decided`: the decisions that count; `end`: of `writers`, which must have the cause of each. `ledger_beginning`: where the
        ledger begins now.
        """
        self.ledger_beginning = ledger_beginning
        beyond = missing_events(self._topics.writers, decided, end, gaps)
        gaps = gaps if beyond is None else [*gaps, beyond]
        now = utc_now()
        earlier = () if checkpoint is None else recent_gaps(checkpoint.gaps, now)
        if any(each.topic == self._topics.decisions for each in gaps):
            earlier = tuple(replace(each, decisions_end=0) for each in earlier)  # offsets of others by now
        self._gaps = (*earlier, *(FoundGap(each, now, self.decisions_end) for each in gaps))
        self._missing = tuple(each for each in gaps if each.topic != self._topics.ledger)
        if self._missing:
            self._no_checkpoint_before = monotonic() + self._settings.validity_seconds
        elif checkpoint is not None:
            self._read = checkpoint.read
        for gap in gaps:
            log.error(
                "log.incomplete",
                partition=self._number,
                topic=gap.topic,
                problem=gap.problem,
                expected=gap.expected,
                found=gap.found,
                detail=_LEDGER_LOST if gap.topic == self._topics.ledger else _LOG_LOST,
            )

    def on_event(self, record: ConsumerRecord) -> None:
        self._read = LastRecord(record.offset, digest(record.value))

    def on_decision(self, value: bytes, offset: int) -> None:
        """Kafka has acknowledged a decision of the owner."""
        if self._is_complete(self._topics.decisions, offset, self.decisions_end):
            self.decisions_end = offset + 1
            self._published = LastRecord(offset, digest(value))

    def on_ledger_entry(self, value: bytes, offset: int) -> None:
        """Kafka has acknowledged a ledger entry of the owner."""
        if self._is_complete(self._topics.ledger, offset, self.ledger_end):
            self.ledger_end = offset + 1
            self._entry = LastRecord(offset, digest(value))
        else:
            self.ledger_lost = self.ledger_lost or offset < self.ledger_end

    def _is_complete(self, topic: str, offset: int, end: int) -> bool:
        """Whether no record of the owner was lost before this one. Otherwise the last checkpoint must name one that is lost."""
        if self.cut is None and offset < end:
            self.cut = (
                f"topic {topic} has lost records of partition {self._number}: a record was acknowledged at offset {offset}, an "
                f"earlier one at {end - 1}"
            )
        return self.cut is None

    def checkpoint(self, offset: int, decisions: Position) -> Checkpoint:
        """The checkpoint with these positions, and with what must not be missing later."""
        return Checkpoint(
            offset,
            decisions,
            self._read,
            self._published,
            self.ledger_end,
            self._gaps,
            self._entry,
            self.ledger_beginning,
        )
