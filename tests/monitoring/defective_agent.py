"""`lakewarden` with a defect: an unexpected error where a conflict is reported. It stops the table."""

from __future__ import annotations

from unittest.mock import patch

from lakewarden.agent import wire_events
from lakewarden.agent.cli.entry import main
from lakewarden.events import ConflictDetected, EventBase

DEFECT = "a planted defect"

if __name__ == "__main__":
    stamped = wire_events.stamped

    def defective(event: EventBase, agent: str, term: str) -> EventBase:
        if isinstance(event, ConflictDetected):
            raise ZeroDivisionError(DEFECT)
        return stamped(event, agent, term)

    with patch.object(wire_events, "stamped", defective):
        main()
