"""The writer's side of the protocol: the gate, its transactions, and their conversation with the agent."""
