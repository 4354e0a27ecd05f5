"""Conditional writes to the stores that hold lock objects: S3, Google Cloud Storage, Azure Blob, local disk.

- `port.py`: the interface that the lock uses.
- `open.py`: chooses the store for a URI, opens and probes it once. It imports `s3.py` and `cloud.py` only when they are needed.
- `probe.py`: checks that a store honours conditions.

`handlers/lease/store_answers.py` says what each answer of a store means.
"""

from lakewarden.agent.stores.local import LocalStore as LocalStore
from lakewarden.agent.stores.locations import LocationError as LocationError
from lakewarden.agent.stores.open import Stores as Stores, folder_of as folder_of, open_store as open_store
from lakewarden.agent.stores.port import (
    MAX_OBJECT_BYTES as MAX_OBJECT_BYTES,
    ConditionalStore as ConditionalStore,
)
from lakewarden.agent.stores.probe import (
    StoreProbeError as StoreProbeError,
    StoreRefusedError as StoreRefusedError,
    StoreUnreachableError as StoreUnreachableError,
    probe as probe,
)
