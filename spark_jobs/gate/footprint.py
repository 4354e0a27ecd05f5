"""What a transaction has touched: the markers that its driver published, and those that it reads back from Kafka."""

from collections.abc import Iterable, Iterator

from lakewarden.events import CommitRequested, Marker, MarkerCreated
from lakewarden.handlers import writers_log
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import whole_partitions
from lakewarden.spark_jobs.gate.waiting import Waits

MAX_TOUCHED = 50_000
"""Markers kept one by one for a retry's scope. If there are more, only their partitions are kept."""

log = EventLogger("lakewarden.gate")


class Footprint:
    """The markers of one transaction."""

    def __init__(self, channel: Channel, waits: Waits) -> None:
        self.touched: dict[Marker, None] = {}
        """Those that the driver published, in their order."""
        self.on_executors = False
        """Whether executors may have published some."""
        self._channel = channel
        self._waits = waits
        self._intent = waits.intent
        # What the intent declared counts as touched since the admission.
        self._declared = frozenset(waits.intent.scope)

    @property
    def is_empty(self) -> bool:
        """Whether the transaction has provably touched nothing."""
        return not (self.touched or self._declared or self.on_executors)

    def undeclared(self, markers: Iterable[Marker]) -> tuple[Marker, ...]:
        """Return the markers that the intent doesn't declare: those to publish."""
        return tuple(marker for marker in markers if marker not in self._declared)

    def add(self, markers: Iterable[Marker]) -> None:
        """Note markers that are published."""
        self.touched.update(dict.fromkeys(markers))
        if len(self.touched) > MAX_TOUCHED:
            self.touched = dict.fromkeys(whole_partitions(self.touched))

    def read_back(self, timeout: float) -> tuple[Marker, ...]:
        """As `Transaction.footprint`."""
        progress = self._waits.progress
        abort = progress.abort or progress.late_abort
        known = dict.fromkeys(self.touched)
        for entry in abort.conflicts if abort else ():
            marker = Marker(partition=entry.partition, file_group=entry.file_group, operation=entry.operation)
            known[marker] = None
        known |= dict.fromkeys(self._published(timeout))
        return tuple(known)

    def _published(self, timeout: float) -> Iterator[Marker]:
        """Read those of executors, and of tasks whose job was cancelled. If Kafka doesn't answer, log it, and yield none."""
        intent, start = self._intent, self._waits.intent_offset
        if start is None:
            return
        try:
            events = self._channel.read_back(intent.table, start, timeout)
        except GateError as error:
            log.warning(
                "gate.footprint-incomplete",
                table=intent.table,
                transaction=intent.transaction,
                error=str(error),
            )
            return
        mine = (intent.table, intent.writer, intent.transaction)
        for event in events:
            if not isinstance(event, MarkerCreated | CommitRequested):
                continue
            if mine == (event.table, event.writer, event.transaction):
                yield from event.markers

    def met_none_of(
        self, scope: Iterable[Marker], winners: Iterable[str], since: int, timeout: float
    ) -> bool | None:
        """Return whether the transactions for which this one waited, and the `winners`, touched nothing that it touched.

        It reads their markers back from Kafka, from the offset `since` in `writers` on. None if it can't know. A batch that
        touches no less than its scope meets each transaction that overlaps the scope.
        """
        if self.touched and set(scope).issuperset(self.touched):
            return False
        try:
            events = self._channel.read_back(self._intent.table, since, timeout)
        except GateError as error:
            log.warning("gate.wait-not-measured", **self._intent.names, error=str(error))
            return None
        transaction = self._intent.transaction
        others = {*winners, *writers_log.waited_for(events, transaction)}
        outcome = writers_log.met(events, transaction, self.touched, others)
        return None if outcome is None or not others else not outcome
