"""The lock on virtual time: the production automaton and shell, many agents, one seed, and everything that goes wrong.

Nothing here is a model of the lock: `handlers/lease/machine.py`, `agent/locks/keeper.py` and
`agent/stores/classify.py` run as they are.
What is simulated is the world around them:

- `timeline.py`: true time, and what happens when; nobody in the simulation can see it
- `clocks.py`: each machine's own time: a wall clock that is off, a monotonic clock that runs fast or slow
- `loop.py`, `node.py`: a process with an event loop of its own, which can be paused between any two callbacks, or die there
- `network.py`: requests that are delayed, lost on the way there or on the way back, or act long after they were given up
- `weather.py`: which of that happens when
- `store.py`: the object store, whose core the contract suite vouches for, and its client
- `agents.py`, `hudi.py`, `stranger.py`: who contends for the locks: ours, Hudi's rules with their defects, and a person;
  `environment.py`: what they are given
- `oracles.py`, `violations.py`: what must never happen, and what must happen in the end
- `scenario.py`: what a seed means; `run.py`: one seed from beginning to end; `batch.py`, `__main__.py`: many of them, and
  those that failed
- `planted.py`: bugs that the oracles must find; `required.py`: what the tests ask of this simulation and of the whole's

`python -m tests.simulation --seed 17 --trace` shows one run.
"""
