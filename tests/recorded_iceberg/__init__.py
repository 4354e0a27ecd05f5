"""The metadata of a small table, byte for byte as Iceberg 1.10 on Spark 4.0 wrote it. `record.py` says by which statements."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "flights"


def recorded(path: str) -> bytes:
    """The bytes of one file, by its path in the table."""
    return (_FOLDER / path.removeprefix("metadata/")).read_bytes()


def names() -> list[str]:
    """The paths of all files in the table."""
    return sorted(f"metadata/{each.name}" for each in _FOLDER.iterdir())
