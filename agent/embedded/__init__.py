"""Kafka on this machine for development, the demo and the tests: broker, jars, JDK, child processes."""
