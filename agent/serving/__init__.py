"""The running agent: its Kafka session, its partitions, take-over, periodic check and checkpoints."""
