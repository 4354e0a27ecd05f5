"""The writer's side of the protocol: the gate, its transactions and their events. Start with `gate.py`."""
