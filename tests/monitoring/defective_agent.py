"""`lakewarden` with a defect: an unexpected error where a conflict is reported. It stops the table."""

from __future__ import annotations

from unittest.mock import patch

from lakewarden.agent import wire_events
from lakewarden.agent.cli.entry import main

DEFECT = "a planted defect"

if __name__ == "__main__":
    with patch.object(wire_events, "conflict", side_effect=ZeroDivisionError(DEFECT)):
        main()
