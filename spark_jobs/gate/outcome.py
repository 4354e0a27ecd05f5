"""What became of a transaction's batch: by the report of its publish, or by a look into its table.

- *A publish that raised has an unknown outcome.* The transaction looks the batch up in the table, if the sink can
  (`recognise`). A sink that knows the outcome reports it with `grant.published(…)` or `grant.not_published()`. Otherwise
  the writer reports nothing. `BaseChanged` means that nothing was published.
- *A publish without a report is unknown too.* A format that publishes in a callback calls `request_grant` and reports the
  outcome itself, from whatever thread the callback runs in. If the body ends without a report, the batch is looked up.
- *Staged files are discarded last*: after the body and its jobs have ended and the outcome is reported, and only if nothing
  of them is, or can still come, in the table (`on_discard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.errors import BaseChanged, GateError
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.observer import MAX_ERROR, Steps
from lakewarden.spark_jobs.gate.progress import GrantLease
from lakewarden.spark_jobs.gate.waiting import Waits

EXPIRED = None
"""In place of a batch: the table no longer shows what is older."""

log = EventLogger("lakewarden.gate")


class CommitLookup(Protocol):
    """Returns the version in which `writer` committed batch `batch_id`, or None if the table doesn't have it.

    It raises if it can't know. The table has a batch if the commit of the batch belongs to the history of the table's present
    version: a rollback takes commits out of that history.
    """

    def __call__(self, writer: str, batch_id: int, /) -> str | None: ...


class BatchOutcome:
    """The grant of one transaction, what is known of its publish, and what it staged."""

    def __init__(self, waits: Waits, steps: Steps) -> None:
        self.grant: Grant | None = None
        self.lookup: CommitLookup | None = None
        self.discards: list[Callable[[], object]] = []
        self._waits = waits
        self._intent = waits.intent
        self._steps = steps
        self._found = False
        self._looked_up = False

    @property
    def publish(self) -> PublishOutcome:
        """As `Transaction.outcome`."""
        return PublishOutcome.NOT_PUBLISHED if self.grant is None else self.grant.outcome

    @property
    def discardable(self) -> bool:
        """As `Transaction.discardable`."""
        return self._found or self.publish is PublishOutcome.NOT_PUBLISHED

    def version_in_table(self) -> str | None:
        """Look the batch up. None if the table doesn't have it, or can't be asked."""
        if self.lookup is None or self._intent.batch_id is None:
            return None
        return self.lookup(self._waits.writer, self._intent.batch_id)

    def grant_of(self, lease: GrantLease) -> Grant:
        """Return the grant with this lease, for the body.

        If the table has the batch, that is reported, and `AlreadyCommitted` raised. Otherwise the lease must still count.
        """
        grant = Grant(
            lease.grant,
            lease.token,
            check=self._waits.require_lease,
            completed=self._report_completed,
            failed=self.found_in_table,
        )
        self._steps.notify("granted", token=lease.token, lease_seconds=lease.lease_seconds)
        if self.lookup is not None:
            version = self.version_in_table()
            if version is not None:
                self._found, self.grant = True, grant
                grant.published(version)
                raise self._intent.already_committed(None, version)
            self._waits.require_lease()
        with self._waits.changed:
            if self._waits.ended:
                raise refusals.ended(self._intent.facts)
            self.grant = grant
        return grant

    def found_in_table(self, grant: Grant, error: Exception) -> bool:
        """After a publish that raised: return whether the table has the commit. What the sink reported takes precedence.

        If that stays unknown, raise `OutcomeUnknown`, unless `error` is one of the gate's own.
        """
        if isinstance(error, BaseChanged) and grant.outcome is PublishOutcome.UNKNOWN:
            grant.not_published()
        if grant.outcome is not PublishOutcome.UNKNOWN:
            return False
        self._looked_up = True
        version = self._version_if_readable()
        if version is not None:
            log.warning(
                "gate.published-after-all",
                **self._intent.names,
                version=version,
                error=str(error)[:MAX_ERROR],
            )
            grant.published(version)
            return True
        if isinstance(error, GateError):
            return False
        recognisable = self.lookup is not None
        raise refusals.outcome_unknown(error, self._intent.facts, recognisable=recognisable) from error

    def _version_if_readable(self) -> str | None:
        try:
            return self.version_in_table()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the outcome stays unknown
            log.warning("gate.table-unreadable", **self._intent.names, error=repr(failure))
            return None

    def settled(self, error: BaseException | None) -> BaseException | None:
        """Return the body's error, after the outcome of a publish that it didn't report was looked up."""
        grant = self.grant
        if grant is None or grant.outcome is not PublishOutcome.UNKNOWN:
            return error
        if error is not None and (self._looked_up or not isinstance(error, Exception)):
            return error
        unreported = error or RuntimeError("the body ended without a report of its publish")
        try:
            return None if self.found_in_table(grant, unreported) else error
        except GateError as unknown:
            unknown.__cause__ = error
            return unknown

    def discard(self) -> None:
        """Remove what was staged."""
        for function in self.discards:
            try:
                function()
            except Exception as failure:  # files that the table doesn't refer to only cost space
                log.exception("gate.discard-failed", **self._intent.names, error=repr(failure))

    def _report_completed(self, grant: Grant) -> None:
        self._waits.publisher.publish_completed(grant.grant, grant.version)
        self._steps.notify("completed", version=grant.version)


def find_batch(history: Iterable[tuple[int | None, str]], batch_id: int, facts: str) -> str | None:
    """Return the version of a batch, or None if the history doesn't have it.

    `history`: the batches of one writer with their versions, the newest first. They rise, so the search ends at the first
    smaller one. Behind `EXPIRED`, a later batch shows that this one was committed.

    Raises `GateError` if the history has a later batch, and provably not this one. Then neither to skip the batch nor to write it
    is right: rows of it are missing, or would come after later ones.
    """
    later: tuple[int, str] | None = None
    for number, version in history:
        if number is EXPIRED:
            return later[1] if later else None
        if number == batch_id:
            return version
        if number < batch_id:
            break
        later = (number, version)
    if later is None:
        return None
    raise GateError(
        f"the table has batch {later[0]} of this writer, in version {later[1]}, and not batch {batch_id}: a rollback removed "
        "that one, or it had no rows; nothing was published; to write both again, roll the table back to before that version, "
        f"then restart the query; to skip the batches up to {later[0]}, run `lakewarden ledger correct` with --batch-id "
        f"{later[0]}; {facts}"
    )
