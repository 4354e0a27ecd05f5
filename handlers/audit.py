"""The periodic self-audit: do the index and the transactions agree?

A bounded share of the transactions' entries is looked at each time, going round; the counts that cost nothing are checked
always. What is found here is a bug of ours: the table stops, loudly, and everything else goes on.
"""

from __future__ import annotations

from itertools import islice

from lakewarden.handlers.state import TableState
from lakewarden.handlers.transactions import COMPUTING, LANDED, OPEN, Phase


class InvariantBrokenError(Exception):
    """The table's state contradicts itself. The table is stopped; restart the agent to rebuild it from the log."""


def self_audit(state: TableState) -> None:
    """Raise `InvariantBrokenError`, with the story, if something does not agree."""
    granted = [each.id for each in state.transactions.values() if each.phase is Phase.GRANTED]
    _require(len(granted) <= 1, state, f"two grants run: {granted}")
    for transaction in state.transactions.values():
        where = f"transaction {transaction.id} is {transaction.phase.value}"
        _require(transaction.phase in OPEN | LANDED, state, f"{where} and still kept")
        _require((transaction.phase is Phase.GRANTED) == (transaction.grant is not None), state, f"{where}: grant")
        _require((transaction.phase in LANDED) == (transaction.ended >= 0), state, f"{where}: ended={transaction.ended}")
        waits = transaction.phase is Phase.WAITING
        _require(not waits or transaction.requested >= 0, state, f"{where} but never asked for its commit")
        _require(transaction.phase not in COMPUTING or transaction.began >= 0, state, f"{where} but never began")
    _audit_index(state)


def _audit_index(state: TableState) -> None:
    entries = (
        (transaction, partition, file_group)
        for transaction in state.transactions.values()
        for partition, file_groups in transaction.footprint.items()
        for file_group in file_groups
    )
    looked_at = 0
    for transaction, partition, file_group in islice(
        entries, state.audited, state.audited + state.settings.audit_entries
    ):
        looked_at += 1
        touches = state.footprints.index.get(partition, {}).get(file_group, ())
        known = all(state.transactions.get(touch.transaction.id) is touch.transaction for touch in touches)
        mine = any(touch.transaction is transaction for touch in touches)
        _require(known and mine, state, f"index and {transaction.id} disagree on {partition!r} {file_group!r}")
    state.audited = state.audited + looked_at if looked_at == state.settings.audit_entries else 0


def _require(holds: bool, state: TableState, story: str) -> None:
    if not holds:
        raise InvariantBrokenError(f"table {state.uri} at moment {state.moment}: {story}")
