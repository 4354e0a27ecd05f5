"""The whole on virtual time: writers, executors, agents, Kafka, stores, clocks, pauses; one seed, and everything that goes wrong.

As it is, runs all that decides, and all that an agent does: `agent/serving/agent.py` and below (sessions, assignment, replay,
terms, live decisions, commit points, publisher, locks), `handlers/`, the codec, and of the writer its rules
(`spark_jobs/gate/progress.py` and `lease.py`). Simulated is the world: see `agents.py` for every seam.

- `broker.py`, `connection.py`, `clients.py`: Kafka's logs and its group, the way there, and aiokafka's three clients
- `processes.py`: which process runs, so that production code finds its own clock and its own Kafka
- `agents.py`: the seams, and an owner of a partition that is watched
- `writers.py`: drivers and executors; `table.py`: the tables, fenced or not, and what lands in them
- `oracles.py`: G1 to G7 and what else must never happen, judged from outside
- `scenario.py`: what a seed means; `run.py`: one seed from beginning to end; `batch.py`, `__main__.py`: many of them
- `planted.py`: bugs that the oracles must find

Time, nodes, the store, the weather and Hudi's writer are those of the lock's simulation, one folder up.

`python -m tests.simulation.whole --seed 17 --trace` shows one run.
"""
