"""How a commit of the gate is known in its table. The sinks write the label, and watchers look for it."""

from typing import Final

TRANSACTION: Final = "lakewarden.transaction"
"""Its value is the transaction. Delta has it in `userMetadata`, Paimon in a snapshot's properties, Iceberg in its summary."""
HUDI_LABEL: Final = "_lakewarden"
"""In the extra metadata of Hudi's commits: JSON with the writer, the batch and the transaction."""
