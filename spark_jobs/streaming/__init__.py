"""Micro-batches as transactions, cancelling their Spark jobs, and stopping a query."""
