"""Logs of small tables, byte for byte as Delta Lake 4.0.0 on Spark 4.0 wrote them. `record.py` says by which statements.

`days` is partitioned by region and day. `mapped` has column mapping, deletion vectors and in-commit timestamps.
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
