"""What the lock objects show of a whole run: what Hudi's writer believes, and that no other object is touched."""

from __future__ import annotations

from collections.abc import Mapping

from lakewarden.agent.locks.keeper import KeeperEvent
from tests.simulation.node import Node
from tests.simulation.oracles import Assumed, Oracles as LockOracles, when_wall_shows
from tests.simulation.timeline import Timeline
from tests.simulation.whole.oracles import Oracles
from tests.simulation.whole.scenario import OTHER_LOCK


class LockWatch(LockOracles):
    """Observes the lock objects only for what Hudi's writer believes."""

    def __init__(
        self, timeline: Timeline, assumed: Assumed, oracles: Oracles, tables: Mapping[str, str]
    ) -> None:
        super().__init__(timeline, assumed)
        self._whole = oracles
        self._table_of = tables
        """Table by lock."""

    def on_request(self, node: Node, uri: str, body: bytes | None) -> None:
        """A node sends a read, or a write of this body. The lock's own simulation judges the rest."""
        if uri == OTHER_LOCK:
            self._whole.violated(
                "locks stay in place", f"{node.name} {'reads' if body is None else 'writes'} {uri}"
            )

    def on_answer(self, node: object, uri: str, outcome: object, *, write: bool) -> None:
        """Do nothing: the lock's own simulation judges this."""

    def on_write(self, writer: str, uri: str, body: bytes, before: bytes | None, *, late: bool) -> None:
        """Do nothing, likewise."""

    def on_keeper_event(self, node: Node, uri: str, what: KeeperEvent, *, relied_on: bool) -> None:
        """Do nothing, likewise."""

    def on_hudi_acquired(self, node: Node, uri: str, owner: str, valid_until: int) -> None:
        """A Hudi writer's PUT was confirmed."""
        now = self._timeline.now
        self._whole.on_foreign_acquired(
            self._table_of[uri], node, when_wall_shows(node.clock, valid_until, now)
        )

    def on_hudi_released(self, node: Node, uri: str) -> None:
        """A Hudi writer releases the lock."""
        self._whole.on_foreign_released(self._table_of[uri])
