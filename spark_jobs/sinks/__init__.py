"""Sinks: how a batch is staged in a table format and published. The contract is in `contract.py`."""
