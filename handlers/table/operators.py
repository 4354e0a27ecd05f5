"""What follows from the requests of operators (docs/decisions/0020).

- `abort-requested` of an open transaction that is not granted: the agent aborts it (`operator`).
- `abort-requested` of a granted one: the agent publishes `lease-lost`. Its writer may be publishing, so the grant is not
  extended, and nothing else is granted before its lease is over.
- `abort-requested` of one that has ended: nothing follows.
- `ledger-corrected`: a transaction that computes a batch which is committed now is aborted (`superseded`), as after a late
  completion (`admission.py`).

All of these aborts are retriable: the request frees the table, and the job may compute again behind the others.

The request is a fact of the transaction (`facts.py`). So one that was read and not answered is answered after the replay.
"""

from __future__ import annotations

from lakewarden.handlers.table.step_context import StepContext


def abort_as_requested(context: StepContext) -> None:
    """Answer the requests to end a transaction that are not answered yet."""
    for transaction in context.state.open():
        request, grant = transaction.abort_request, transaction.grant
        if request is None or (grant is not None and grant.revoked):
            continue
        context.abort(
            transaction,
            "operator" if grant is None else "lease-lost",
            detail=f"requested by operator {request.operator!r}: {request.reason}",
            cause=request.event_id,
        )
