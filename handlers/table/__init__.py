"""The state machine of one table: transactions, conflicts, admission and grants. Start at `machine.py`."""
