"""Micro-batches as transactions, the cancelling of their Spark jobs, and stopping a query."""
