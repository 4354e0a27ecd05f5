"""What an agent keeps through all its sessions. The tables are not part of it: each session rebuilds their state from the log."""

from collections import deque

import anyio

from lakewarden.agent.clock import monotonic
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.serving.full_collections import FullCollections
from lakewarden.agent.settings import Settings
from lakewarden.events import UndecodableRecords

HEALTHY_SECONDS = 60.0
"""A session that was ready for so long before it ended. One that ends earlier may end for the same reason again."""
MAX_TERMS = 10_000
"""Own terms that are remembered. Of older ones, no record is on its way to the log any more."""


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
        """Set `ready`: every assigned partition is live."""
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
