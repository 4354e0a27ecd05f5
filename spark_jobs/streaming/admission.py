"""Which admission the first transaction of a batch asks for, with `admission="auto"`. No I/O, clock, randomness or lock.

| the batch's scope | on this table | admission | scope declared |
| --- | --- | --- | --- |
| known | waiting pays | queued | the scope |
| known | waiting doesn't pay | optimistic | none |
| unknown | the writer is disturbed | queued | what its last batch touched |
| unknown | otherwise | optimistic | none |

- **Unknown** is the scope of a plain function, and of a sink that returns None: appends, or a batch of too many partitions.
- **Disturbed** is a batch that lost a conflict, or waited for its admission. It was disturbed *needlessly* if it touched
  nothing that the winners, or those it waited for, touched (`handlers/writers_log.py`): a scope may be coarser than what a
  batch touches, and so may be what another batch declared.
- **A disturbed writer** is one that lost a conflict, and not needlessly, until one of its batches is undisturbed, or disturbed
  needlessly. If a batch touches nothing of what its last one touched, the prediction was wrong: the writer isn't
  disturbed any more, and twice as many lost conflicts are needed the next time. A wrong prediction makes others wait.
- **Waiting pays** until `required` batches in a row were disturbed needlessly: 1 at first.
- **A conflict that an optimistic batch lost**, and not needlessly, ends that: waiting pays again, and `required` doubles, up
  to `MAX_REQUIRED`. So a table where both happen is mostly queued.
- **A scope that turns out too small** costs nothing but the wait: what else the batch touches is checked like any marker, and
  a retry declares all of it. An unpartitioned table has one partition, `""`, so its writers take turns while waiting pays.

A retry doesn't ask: it is queued, with all that the batch touched so far (`batches.py`).
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lakewarden.events import Admission, Marker
from lakewarden.handlers.writers_log import overlap

AdmissionMode: TypeAlias = Literal["auto", "optimistic", "queued"]
"""What a user may ask for. `auto` becomes one of the protocol's two for each batch."""

MAX_REQUIRED = 64
"""After several failed returns to optimism. A bound, so that a change of the workload is noticed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a transaction is admitted, and why, as text."""

    admission: Admission
    scope: tuple[Marker, ...]
    reason: str
    scope_known: bool
    """Whether the batch's own scope is known, declared or not."""

    @property
    def predicted(self) -> bool:
        """Whether it declares what the writer's last batch touched."""
        return not self.scope_known and bool(self.scope)


@dataclass(slots=True)
class Prediction:
    """What a writer without a scope is expected to touch."""

    touched: tuple[Marker, ...] = ()
    """By its last batch. Empty if the writer isn't disturbed."""
    lost: int = 0
    """Conflicts lost since."""
    required: int = 1
    """So many lost conflicts, and the next batch is predicted to touch what the last one did."""

    def judge(self, touched: tuple[Marker, ...]) -> bool:
        """Return whether a batch for which it was declared touched any of it."""
        right = overlap(self.touched, touched)
        self.required = 1 if right else min(2 * self.required, MAX_REQUIRED)
        return right


@dataclass(slots=True)
class TableHistory:
    """What the writers of one driver experienced on one table.

    The threads of several queries share it without a lock: a count that is lost costs one more wait.
    """

    needless: int = 0
    """Batches in a row that were disturbed needlessly."""
    required: int = 1
    """So many of them in a row, and waiting doesn't pay."""
    predictions: dict[str, Prediction] = field(default_factory=dict)
    """Predictions of the writers that lost a conflict."""
    begun: dict[str, str | None] = field(default_factory=dict)
    """The writers, by their names on the wire, that have opened a transaction: in which run of their query, the last time."""

    @property
    def waiting_pays(self) -> bool:
        """Whether a batch with a known scope waits for those that overlap it."""
        return self.needless < self.required

    def choose(self, writer: str, scope: tuple[Marker, ...] | None) -> Choice:
        """Return the admission of a batch's first transaction. `scope` is None if it is unknown."""
        if scope is not None:
            if self.waiting_pays:
                return Choice("queued", scope, "its scope is known", scope_known=True)
            return Choice("optimistic", (), "its scope is known, but waiting was needless", scope_known=True)
        prediction = self.predictions.get(writer)
        touched = prediction.touched if prediction else ()
        if touched:
            reason = "its last batch was disturbed: its scope is what that one touched"
            return Choice("queued", touched, reason, scope_known=False)
        return Choice("optimistic", (), "its scope is unknown", scope_known=False)

    def undisturbed(self, writer: str, choice: Choice, touched: tuple[Marker, ...]) -> None:
        """Record that the writer committed a batch that neither lost a conflict nor waited."""
        prediction = self.predictions.get(writer)
        if prediction is not None and choice.predicted:
            prediction.judge(touched)
            prediction.touched = ()

    def disturbed(
        self, writer: str, choice: Choice, *, lost: bool, needlessly: bool | None, touched: tuple[Marker, ...]
    ) -> None:
        """Record that the writer committed a batch that was disturbed.

        `choice` admitted its first transaction. `lost`: it lost a conflict, or else it only waited. `needlessly` is None if
        that is unknown; then a lost conflict counts as a real one, and a wait changes nothing. `touched` is needed only if
        the batch's scope is unknown.
        """
        if not choice.scope_known:
            self._predict(writer, choice, lost=lost and not needlessly, touched=() if needlessly else touched)
        elif needlessly:
            self.needless += 1
        elif lost and choice.admission == "optimistic":
            self.needless, self.required = 0, min(2 * self.required, MAX_REQUIRED)
        elif needlessly is False:
            self.needless = 0

    def _predict(self, writer: str, choice: Choice, *, lost: bool, touched: tuple[Marker, ...]) -> None:
        if not lost and writer not in self.predictions:
            return
        prediction = self.predictions.setdefault(writer, Prediction())
        if choice.predicted:
            prediction.touched = touched if prediction.judge(touched) else ()
            prediction.lost = 0
        elif lost:
            prediction.lost += 1
            if prediction.lost >= prediction.required:
                prediction.touched, prediction.lost = touched, 0
