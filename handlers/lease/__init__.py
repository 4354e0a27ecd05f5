"""The state machine of one lock: how it acquires, renews and releases the lock lease. Start at `machine.py`."""
