"""Decide: the pure core. It maps a state and an input to effects, without I/O, clock, randomness, logging or `await`.

| folder | decides | start at |
| --- | --- | --- |
| `table/` | which transaction starts, commits or is aborted | `table/machine.py` |
| `lease/` | when to acquire, renew and release one lock | `lease/machine.py` |
| `group/` | which agent owns which partition | `group/ownership.py` |
| `explain/` | nothing: it explains past decisions to operators | `explain/transaction.py` |

The docstring of each module states the rules that the module implements.
"""
