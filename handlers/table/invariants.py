"""The periodic self-audit: whether the index and the transactions agree.

A bounded share of the transactions' entries is looked at each time, going round; the counts that cost nothing are
checked always. What is found here is a bug of ours: the table stops, loudly, and everything else goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, OPEN, Phase, Transaction


class InvariantBrokenError(Exception):
    """The table's state contradicts itself. The table is stopped; restart the agent to rebuild it from the log."""


def check_invariants(state: TableState) -> None:
    """Raise `InvariantBrokenError`, with the story, if something does not agree."""
    granted = [each.id for each in state.transactions.values() if each.phase is Phase.GRANTED]
    _require(state, f"two grants run: {granted}", holds=len(granted) <= 1)
    for each in state.transactions.values():
        where = f"transaction {each.id} is {each.phase.value}"
        landed = each.phase in LANDED
        _require(state, f"{where} and still kept", holds=landed or each.phase in OPEN)
        _require(state, f"{where}: grant", holds=(each.phase is Phase.GRANTED) == (each.grant is not None))
        _require(state, f"{where}: ended={each.ended}", holds=landed == (each.ended >= 0))
        asked = each.phase is not Phase.WAITING or each.requested >= 0
        _require(state, f"{where} but never asked for its commit", holds=asked)
        _require(state, f"{where} but never began", holds=each.phase not in COMPUTING or each.began >= 0)
    _check_index(state)


def _check_index(state: TableState) -> None:
    index, known = state.footprints.index, state.transactions
    looked_at = 0
    for transaction, partition, file_groups in _next_entries(state, state.settings.entries_per_check):
        groups = index.get(partition, {})
        for file_group in file_groups:
            agree = False
            for touch in groups.get(file_group, ()):
                if touch.transaction is transaction:
                    agree = True
                elif known.get(touch.transaction.id) is not touch.transaction:
                    agree = False
                    break
            if not agree:
                raise _broken(state, f"index and {transaction.id} disagree on {partition!r} {file_group!r}")
        looked_at += len(file_groups)
    _check_index_size(state)
    state.next_entry_to_check = (
        state.next_entry_to_check + looked_at if looked_at == state.settings.entries_per_check else 0
    )


def _next_entries(state: TableState, wanted: int) -> Iterator[tuple[Transaction, str, list[str]]]:
    """The next so many entries after those audited last; what comes before is stepped over, not walked through."""
    skip = state.next_entry_to_check
    for transaction in state.transactions.values():
        if skip and transaction.markers <= skip:
            skip -= transaction.markers
            continue
        for partition, file_groups in transaction.footprint.items():
            if skip and len(file_groups) <= skip:
                skip -= len(file_groups)
                continue
            share = file_groups[skip : skip + wanted]
            skip, wanted = 0, wanted - len(share)
            yield transaction, partition, share
            if not wanted:
                return


def _check_index_size(state: TableState) -> None:
    """As many entries in the index as the transactions say: one more is one that nobody would ever remove.

    The whole index is counted, so only where it is within the bound of one audit.
    """
    touched = sum(each.markers for each in state.transactions.values())
    if touched > state.settings.entries_per_check:
        return
    entered = sum(
        len(touches) if len(touches) == 1 else len({touch.transaction.id for touch in touches})
        for groups in state.footprints.index.values()
        for touches in groups.values()
    )
    _require(state, f"{entered} entries in the index, {touched} in transactions", holds=entered == touched)


def _require(state: TableState, story: str, *, holds: bool) -> None:
    if not holds:
        raise _broken(state, story)


def _broken(state: TableState, story: str) -> InvariantBrokenError:
    return InvariantBrokenError(f"table {state.uri} at moment {state.moment}: {story}")
