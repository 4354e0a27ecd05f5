"""The lock in virtual time: the production state machine and shell, many agents, one seed, and injected faults.

Nothing here models the lock. `machine.py` and `store_answers.py` of `handlers/lease/`, and `agent/locks/keeper.py` run unchanged.
Only the world around them is simulated:

| module | simulates |
| --- | --- |
| `timeline.py` | true time and the order of all actions; no simulated program can read it |
| `clocks.py` | each machine's clocks: a wall clock with skew, a monotonic clock that runs fast or slow |
| `loop.py`, `node.py` | a process with its own event loop, which can be paused or killed between any two callbacks |
| `network.py` | requests that are delayed, lost on either way, or take effect long after they timed out |
| `faults.py` | which fault happens when |
| `store.py` | the object store, whose core passes the contract suite, and its client |
| `agents.py`, `hudi.py` | the contenders: our agents, and Hudi's writers with their defects |
| `tampering.py` | a person who overwrites a lock object by hand |
| `environment.py` | what each contender can use |

| module | tests |
| --- | --- |
| `oracles.py` | what must never happen, and what must happen in the end |
| `scenario.py`, `run.py` | what a seed means; one run |
| `batch.py`, `command.py` | many seeds, and those that failed |
| `planted.py` | bugs that the oracles must find |
| `required.py` | what the tests require of this simulation and of that of the whole system |

`python -m tests.simulation --seed 17 --trace` prints one run.
"""
