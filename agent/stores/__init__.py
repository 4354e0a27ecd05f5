"""Stores that keep a table's lock: conditional writes on S3, on the local disk, and in memory for tests.

`port.py` is what the lock sees, `classify.py` what S3's answers mean, `probe.py` how a store proves that it can
be trusted with a lock. `s3.py` isn't imported here: see `open.py`.
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
