"""How a commit of the gate is known in its table. The sinks write the label, and watchers look for it."""

from collections.abc import Mapping
from typing import Any, Final

from lakewarden.events.codec import json_object

TRANSACTION: Final = "lakewarden.transaction"
"""Its value is the transaction. Delta has it in `userMetadata`, Paimon in a snapshot's properties, Iceberg in its summary."""
HUDI_LABEL: Final = "_lakewarden"
"""In the extra metadata of Hudi's commits: JSON with the writer, the batch and the transaction."""


def transaction_of_delta(info: Mapping[str, Any]) -> str | None:
    """Return the transaction that `commitInfo` names (`spark_jobs/sinks/delta/observer.py`), or None without a label."""
    transaction = json_object(info.get("userMetadata")).get(TRANSACTION)
    return None if transaction is None else str(transaction)
