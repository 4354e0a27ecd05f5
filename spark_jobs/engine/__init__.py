"""The Spark that runs a batch, as the gate and the sinks see it: `engine.py` is the place to start reading."""
