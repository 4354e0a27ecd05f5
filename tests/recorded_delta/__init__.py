"""Logs of small tables, byte for byte as Delta Lake 4.0.0 on Spark 4.0 wrote them. `record.py` says by which statements.

`days` is partitioned by region and day. `mapped` has column mapping, deletion vectors and in-commit timestamps.

`contest` is by hand: two threads of delta-rs 1.6.6 merged three batches each into one partition of 4,000,000 rows, and repeated
what lost. `files.json` lists its data files. The statements that committed took 97.9 s; five lost, after 88.7 s.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def recorded(table: str, name: str) -> bytes:
    """The bytes of one file of the log."""
    return (_HERE / table / name).read_bytes()


def commit(table: str, version: int) -> bytes:
    """The bytes of one commit."""
    return recorded(table, f"{version:020d}.json")
