"""The states of an owner's tables, also of those that it has forgotten and knows from the ledger only."""

from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.handlers.table.state import TableState


def all_states(owner: PartitionOwner) -> dict[str, TableState]:
    """The states by table; a table without one gets that with which its next event would begin."""
    known = dict.fromkeys((*owner.tables.states, *owner.tables.ledger.tables))
    return {uri: owner.tables.states.get(uri) or owner.tables.restored(uri) for uri in known}
