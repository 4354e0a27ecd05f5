"""Whether Kafka, the stores and the clocks are set up as the agent needs them."""
