"""What an operator asks about: status, conflicts, explain. Read from Kafka and the store; no agent takes part."""
