"""The metadata of a small table, byte for byte as pypaimon 2.1 wrote it. `record.py` says by which commits.

`flights` is an append table, partitioned by day and region.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "flights"


def metadata() -> dict[str, bytes]:
    """All files by their paths in the table."""
    return {f"{each.relative_to(FOLDER)}": each.read_bytes() for each in FOLDER.rglob("*") if each.is_file()}
