"""Sinks: how a batch is staged in a table format and published. `contract.py` says what a sink must do."""
