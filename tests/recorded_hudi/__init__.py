"""Files of small Hudi tables, byte for byte as Hudi wrote them. Each folder says which release.

| folder | written by | table version |
| --- | --- | --- |
| `cow-v9`, `mor-v9` | Hudi 1.2.0 on Spark 3.5.9 | 9 |
| `cow-v6`, `mor-v6` | Hudi 0.15.0 on Spark 3.5.9 | 6 |

They lie flat in their folder, whatever folder of the table they were in.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def recorded(table: str, name: str) -> bytes:
    """The bytes of one file."""
    return (_HERE / table / name).read_bytes()


def names(table: str) -> list[str]:
    """The names of all files of a table."""
    return sorted(each.name for each in (_HERE / table).iterdir())
