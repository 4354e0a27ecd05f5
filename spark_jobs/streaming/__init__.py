"""Micro-batches as transactions, and cancelling their Spark jobs."""
