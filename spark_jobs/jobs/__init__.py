"""Spark programs that are started by name."""
