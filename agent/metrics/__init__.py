"""What the agent measures of itself, for Prometheus. It counts what was decided, and decides nothing."""
