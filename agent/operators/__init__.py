"""What an operator reads: status, conflicts, explain. All from Kafka, without an agent."""
