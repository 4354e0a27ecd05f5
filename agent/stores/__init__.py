"""Conditional writes to the stores that hold lock objects: S3, Google Cloud Storage, Azure Blob, local disk, memory.

- `port.py`: the interface that the lock uses.
- `open.py`: chooses the store for a URI. It imports `s3.py` and `cloud.py` only when they are needed.
- `probe.py`: checks that a store honours conditions.
- `classify.py`: what each answer of a store means.
- `memory.py`: the store for tests and simulations.
"""

from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError
from lakewarden.agent.stores.memory import MemoryStore
from lakewarden.agent.stores.open import open_store
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES, ConditionalStore
from lakewarden.agent.stores.probe import StoreProbeError, StoreRefusedError, StoreUnreachableError, probe

__all__ = [
    "MAX_OBJECT_BYTES",
    "ConditionalStore",
    "LocalStore",
    "LocationError",
    "MemoryStore",
    "StoreProbeError",
    "StoreRefusedError",
    "StoreUnreachableError",
    "open_store",
    "probe",
]
