"""The state machine of one lock: acquiring, renewing and releasing its lease. Start at `machine.py`."""
