"""Decide: the pure core. `(state, input) -> effects`, and nothing else: no I/O, clock, randomness, logging or await.

Start reading at `table.py` (transactions, conflicts, grants) and `lease.py` (the lock). Each file has its rules
at its top.
"""
