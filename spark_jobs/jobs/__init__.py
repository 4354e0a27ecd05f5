"""Spark programs that are run by name."""
