"""What an agent keeps through all its sessions. The tables are not part of it: each session rebuilds their state from the log.

It also keeps Python's full garbage collections short, which block the event loop. A full collection visits every container
object of the process. That takes 40 ms of CPU for the imported modules alone, and 0.1 s more for a million pairs of touches. So
the agent *freezes* what it keeps (`gc.freeze`): a full collection visits only what was created since. The agent freezes

- the modules, at its start,
- the replayed state, when its partitions are live,
- the tables' state, each time it has grown by `GROWN_BYTES`.

A frozen object is freed as any other when its last reference ends. A cycle of references is not. The state of a table has no
cycles once a transaction is removed (`Footprints.remove`). For all other cycles, everything is unfrozen and collected in one long
step: after each session, and in place of each `FREEZES`-th freeze.
"""

import gc
from collections import deque

import anyio

from lakewarden.agent.clock import monotonic
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.settings import Settings
from lakewarden.events import UndecodableRecords

HEALTHY_SECONDS = 60.0
"""A session that was ready for so long before it ended. One that ends earlier may end for the same reason again."""
MAX_TERMS = 10_000
"""Own terms that are remembered. Of older ones, no record is on its way to the log any more."""
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


class Lasting:
    """Shared by an agent and its sessions."""

    def __init__(self, settings: Settings, collections: FullCollections | None = None) -> None:
        self.settings = settings
        self.collections = collections
        """None: this agent freezes nothing."""
        self.metrics = AgentMetrics()
        self.ready = anyio.Event()
        """Set while every assigned partition is live."""
        self.undecodable = UndecodableRecords()
        """Counts the decisions, ledger entries and audit events that this agent could not decode, in all its sessions."""
        self.unpublishable: dict[str, str] = {}
        """Tables whose record a broker refused for its size, with the reason. Each is stopped in all later sessions."""
        self.terms: deque[str] = deque(maxlen=MAX_TERMS)
        """The terms of all partition owners that this process has had."""
        self.topics_checked = False
        """Whether the settings of the topics were compared. The first session does it."""
        self.ever_ready = False
        self._ready_at: float | None = None
        """When this session became ready for the first time."""

    def start_session(self) -> None:
        self._ready_at = None

    def mark_not_ready(self) -> None:
        """Replace `ready` if it is set. An event that is not set stays, because a caller may wait for it."""
        if self.ready.is_set():
            self.ready = anyio.Event()

    def mark_ready(self) -> None:
        self.ready.set()
        self.ever_ready = True
        if self.collections is not None:
            self.collections.freeze()
        if self._ready_at is None:
            self._ready_at = monotonic()

    def note_memory(self, used: int) -> None:
        if self.collections is not None:
            self.collections.note(used)

    def collect_garbage(self) -> None:
        if self.collections is not None:
            self.collections.collect()

    def was_healthy(self) -> bool:
        """Whether the session was ready for `HEALTHY_SECONDS`."""
        return self._ready_at is not None and monotonic() - self._ready_at >= HEALTHY_SECONDS
