"""Which agent of the consumer group owns which partition."""
