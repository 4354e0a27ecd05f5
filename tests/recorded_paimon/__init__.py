"""The metadata of two small tables, byte for byte as Paimon wrote it. `record.py` says by which commits.

flights    an append table, partitioned by day and region, written by pypaimon 2.1
vectors    an append table, partitioned by day, of which Java Paimon 1.4.2 has deleted rows by deletion vectors
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def metadata(table: str = "flights") -> dict[str, bytes]:
    """All files by their paths in the table."""
    folder = FOLDER / table
    return {f"{each.relative_to(folder)}": each.read_bytes() for each in folder.rglob("*") if each.is_file()}
