"""What a person asks of a running fleet, answered from Kafka and the store: status, conflicts, explain."""
