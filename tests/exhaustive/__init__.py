"""Every order of the steps of small worlds, on the code that runs, where the simulations draw orders at random.

| file | what it says |
| --- | --- |
| `engine.py` | explores the states of a model breadth first, prints the shortest story of a violation, looks for starvation |
| `lock.py` | one lock object: what agents, Hudi's provider and the store can do next, and what may never happen |
| `table_world.py` | one table: what there is |
| `table.py`, `table_turn.py` | what can happen next, and what each step does |
| `table_judge.py` | what may never happen |
| `table_form.py` | when two worlds are one state |
| `scopes.py` | the worlds, and which command explores them |
| `planted.py` | bugs that must be found |
| `test_exhaustive.py` | no scope breaks a promise, each bug is found, and worlds that are one state go on alike |

What is broken is printed as a story. This one is of the planted bug that counts a lease from the answer, after 1,830 states:

    agent 0 needs the lock
    the get of agent 0 is answered
    the put of agent 0 acts
    agent 1 needs the lock
    a second passes
    a second passes
    a second passes
    the put of agent 0 is answered
    a second passes
    the get of agent 1 is answered
    the put of agent 1 acts
    BrokenError: no stealing: agent 1 replaces the record of agent 0, which relies on it

`make explore MINUTES=10` prints how far each scope gets. A scope that is cut proves nothing beyond the states that it has seen.

What no scope covers: clocks that jump, more than two faults, lost records, forged events, the memory budget, the refusal of a
lock beside other writers of the table, a rebalance of Kafka's group, a look-up that finds a commit which lands later, and
whether each contender gets the lock in the end.
"""
