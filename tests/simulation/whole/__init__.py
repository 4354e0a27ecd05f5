"""The whole system in virtual time: writers, executors, agents, Kafka, stores and clocks, one seed, and injected faults.

These run unchanged: `agent/serving/agent.py` and everything below it (sessions, assignment, replay, terms, live decisions,
checkpoints, publisher, locks), `handlers/`, the codec, and the writer's rules (`spark_jobs/gate/progress.py` and
`grant.py`). The world around them is simulated:

| module | simulates |
| --- | --- |
| `broker.py`, `connection.py`, `clients.py` | Kafka's logs and consumer group, the way to them, and aiokafka's three clients |
| `processes.py` | which process runs, so that production code finds its own clock and Kafka |
| `agents.py` | every seam to the production code, and the owner of a partition, observed |
| `writers.py` | drivers and executors |
| `strangers.py`, `errors.py` | forged and misplaced events, and unexpected exceptions in an agent |
| `losses.py` | records that Kafka loses |
| `operators.py`, `upgrade.py` | requests of operators, and an upgrade that is rolled back |
| `table.py` | the tables, fenced or not, and their commits |

| module | tests |
| --- | --- |
| `oracles.py`, `decision_oracles.py` | the promises G1 to G7, and what else must never happen, judged from outside |
| `log_knowledge.py`, `histories.py`, `ledger_knowledge.py` | what the logs have, for the oracles |
| `lock_watch.py` | what the lock objects show |
| `scenario.py`, `drawing.py`, `additions.py`, `run.py` | what a seed means; how it is drawn; one run |
| `planted.py` | bugs that the oracles must find |

Time, nodes, the store, the faults and Hudi's writer are those of the lock's simulation, one folder up.

`python -m tests.simulation.whole --seed 17 --trace` prints one run.
"""
