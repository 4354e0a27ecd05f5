"""Stores that keep a table's lock: conditional writes on S3, Google Cloud Storage, Azure Blob and the local disk.

There is one in memory too, for tests and simulations. `port.py` is what the lock sees, `classify.py` what the stores'
answers mean, `probe.py` how a store proves that it can be trusted with a lock. `s3.py` and `cloud.py` aren't imported
here: see `open.py`.
"""

from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError
from lakewarden.agent.stores.memory import MemoryStore
from lakewarden.agent.stores.open import open_store
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES, ConditionalStore
from lakewarden.agent.stores.probe import StoreProbeError, StoreUnreachableError, probe

__all__ = [
    "MAX_OBJECT_BYTES",
    "ConditionalStore",
    "LocalStore",
    "LocationError",
    "MemoryStore",
    "StoreProbeError",
    "StoreUnreachableError",
    "open_store",
    "probe",
]
