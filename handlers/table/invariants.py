"""The periodic check that the parts of a table's state agree.

Each check covers all transactions, and up to `entries_per_check` entries of the index. The next check continues where this
one ended. A violation is a bug in lakewarden: the agent stops the table, logs the message, and continues with the others.
"""

from collections.abc import Iterator

from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import COMPUTING, LANDED, OPEN, Phase, Touch, Transaction


class InvariantBrokenError(Exception):
    """The table's state contradicts itself. The agent stops the table; restart the agent to rebuild the state from the log."""


def check_invariants(state: TableState) -> None:
    """Raise `InvariantBrokenError`, with the transaction and what is wrong, if the state contradicts itself."""
    granted = [each.id for each in state.transactions.values() if each.phase is Phase.GRANTED]
    _require(state, f"{len(granted)} transactions are granted at once: {granted}", holds=len(granted) <= 1)
    for each in state.transactions.values():
        name = f"transaction {each.id} ({each.phase.value})"
        landed = each.phase in LANDED
        _require(state, f"{name} should have been removed", holds=landed or each.phase in OPEN)
        _require(state, f"{name} is counted in another phase", holds=each.id in state.in_phase[each.phase])
        _require(
            state,
            f"{name} is not counted for its writer",
            holds=each.id in state.of_writer.get(each.writer, ()),
        )
        has_grant = each.grant is not None
        _require(state, f"{name} has grant {each.grant}", holds=(each.phase is Phase.GRANTED) == has_grant)
        _require(state, f"{name} has ended={each.ended}", holds=landed == (each.ended >= 0))
        requested = each.phase is not Phase.WAITING or each.requested >= 0
        _require(state, f"{name} never requested its commit", holds=requested)
        _require(state, f"{name} never began", holds=each.phase not in COMPUTING or each.began >= 0)
    _check_index(state)


def _check_index(state: TableState) -> None:
    index, known, counting = state.footprints.index, state.transactions, state.footprints.first
    checked = 0
    owners: dict[
        int, set[Transaction]
    ] = {}  # a thousand transactions may share a tuple, in a thousand places
    for transaction, partition, file_groups in _next_entries(state, state.settings.entries_per_check):
        groups = index.get(partition, {})
        last: tuple[Touch, ...] | None = None
        for file_group in file_groups:
            touches = groups.get(file_group, ())
            if touches is last:
                continue
            last = touches
            if id(touches) not in owners:
                unknown = [
                    each
                    for each in touches
                    if each in counting and known.get(each.transaction.id) is not each.transaction
                ]
                owners[id(touches)] = set() if unknown else {each.transaction for each in touches}
            if transaction not in owners[id(touches)]:
                problem = (
                    f"the index and transaction {transaction.id} disagree on {partition!r} {file_group!r}"
                )
                _require(state, problem, holds=False)
        checked += len(file_groups)
    _check_index_size(state)
    state.next_entry_to_check = (
        state.next_entry_to_check + checked if checked == state.settings.entries_per_check else 0
    )


def _next_entries(state: TableState, count: int) -> Iterator[tuple[Transaction, str, list[str]]]:
    """The next `count` entries after those checked last. Whole transactions and partitions are skipped by their size."""
    skip = state.next_entry_to_check
    for transaction in state.transactions.values():
        if skip and transaction.markers <= skip:
            skip -= transaction.markers
            continue
        for partition, file_groups in transaction.footprint.items():
            if skip and len(file_groups) <= skip:
                skip -= len(file_groups)
                continue
            share = file_groups[skip : skip + count]
            skip, count = 0, count - len(share)
            yield transaction, partition, share
            if not count:
                return


def _check_index_size(state: TableState) -> None:
    """Require that the index has as many entries as the transactions: no transaction would ever remove an extra one.

    The whole index is counted, so only if it is no larger than `entries_per_check`.
    """
    counted = sum(each.bytes for each in state.transactions.values())
    problem = f"the index counts {state.footprints.bytes} bytes, its transactions {counted}"
    _require(state, problem, holds=state.footprints.bytes == counted)
    touched = sum(each.markers for each in state.transactions.values())
    if touched > state.settings.entries_per_check or state.footprints.garbage:
        return
    indexed = sum(
        len(touches) if len(touches) == 1 else len({touch.transaction.id for touch in touches})
        for groups in state.footprints.index.values()
        for touches in groups.values()
    )
    problem = f"the index has {indexed} entries, its transactions {touched}"
    _require(state, problem, holds=indexed == touched)


def _require(state: TableState, problem: str, *, holds: bool) -> None:
    if not holds:
        raise InvariantBrokenError(f"table {state.uri} at moment {state.moment}: {problem}")
