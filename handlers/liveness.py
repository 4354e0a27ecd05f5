"""Which writers live.

A writer whose events stop for `heartbeat_misses` of its own heartbeat intervals is lost, and its transaction aborted
(`writer-lost`). The silence is counted on the agent's monotonic clock, and only while the agent has caught up with the
log: an event that waits in Kafka unread is no silence (lag is not death). A writer that comes back finds its abort,
not a second chance. A granted one is judged by its lease alone (`grants.py`).
"""

from __future__ import annotations

from lakewarden.handlers.deciding import Deciding
from lakewarden.handlers.transactions import Phase


def abort_silent(deciding: Deciding, caught_up_since: float | None) -> None:
    """Abort whoever was silent for too long; `caught_up_since` is None while the agent lags."""
    if caught_up_since is None:
        return
    for transaction in deciding.state.open():
        limit = transaction.heartbeat_seconds * deciding.state.settings.heartbeat_misses
        silent = deciding.now - max(transaction.heard_at, caught_up_since)
        if transaction.phase is not Phase.GRANTED and silent > limit:
            deciding.abort(
                transaction, "writer-lost", detail=f"nothing heard for {silent:.1f} s, limit {limit:.1f} s"
            )
