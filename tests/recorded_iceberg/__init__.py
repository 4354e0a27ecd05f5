"""The metadata of a small table, byte for byte as Iceberg 1.10 on Spark 4.0 wrote it. `record.py` says by which statements."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro

_FOLDER = Path(__file__).parent / "flights"


def recorded(path: str) -> bytes:
    """The bytes of one file, by its path in the table."""
    return (_FOLDER / path.removeprefix("metadata/")).read_bytes()


def names() -> list[str]:
    """The paths of all files in the table."""
    return sorted(f"metadata/{each.name}" for each in _FOLDER.iterdir())


def moved(number: int, location: str) -> dict[str, Any]:
    """The metadata of a version, as if the table were at `location`. `move` writes the files that it names."""
    fields = json.loads(recorded(f"metadata/v{number}.metadata.json"))
    found: dict[str, Any] = json.loads(json.dumps(fields).replace(fields["location"], location))
    return found


def move(folder: Path, location: str | None = None) -> str:
    """Write all manifests below a folder, with paths in it or below `location`, and return the table's location."""
    location = location or f"file://{folder}"
    old = json.loads(recorded("metadata/v1.metadata.json"))["location"]
    (folder / "metadata").mkdir(parents=True)
    for path in names():
        if path.endswith(".avro"):
            reader = fastavro.reader(io.BytesIO(recorded(path)))
            records = [each for each in reader if isinstance(each, dict)]
            for each in records:
                if "manifest_path" in each:
                    each["manifest_path"] = each["manifest_path"].replace(old, location)
            with (folder / path).open("wb") as file:
                fastavro.writer(file, reader.writer_schema or {}, records)
    return location
