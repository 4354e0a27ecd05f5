"""Keeps Python's full garbage collections short: they block the event loop.

A full collection visits every container object of the process. That takes 40 ms of CPU for the imported modules alone, and 0.1 s
more for a million pairs of touches. So the agent *freezes* what it keeps (`gc.freeze`): a full
collection visits only what was created since. The agent freezes

- the modules, at its start,
- the replayed state, when its partitions are live,
- the tables' state, each time it has grown by `GROWN_BYTES`.

A frozen object is freed as any other when its last reference ends. A cycle of references is not. The state of a table has no
cycles once a transaction is removed (`Footprints.remove`). For all other cycles, everything is unfrozen and collected in one long
step: after each session, and in place of each `FREEZES`-th freeze.
"""

import gc

GROWN_BYTES = 32 * 1024 * 1024
"""By the estimate of the memory budget: 220,000 pairs of touches, which a full collection visits in about 20 ms."""
FREEZES = 64


class FullCollections:
    """The frozen objects of this process. An agent that shares its process with other programs has none."""

    def __init__(self) -> None:
        self._used = 0
        self._smallest = 0
        """Smallest number of objects of the tables' state since the last freeze."""
        self._frozen = 0

    def note(self, used: int) -> None:
        self._used = used
        self._smallest = min(self._smallest, used)
        if used - self._smallest >= GROWN_BYTES:
            self.freeze()

    def freeze(self) -> None:
        """Freeze what is there now, or collect everything if that is due."""
        self._frozen += 1
        if self._frozen >= FREEZES:
            self.collect()
            return
        gc.collect(1)
        gc.freeze()
        self._smallest = self._used

    def collect(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._smallest = self._used
        self._frozen = 0
