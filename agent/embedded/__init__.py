"""Kafka on this machine for development and the tests: broker, jars, JDK, child processes."""
