"""Recorded bytes of the protocol, which every later version must read.

    v1/0.1.0/records.json   which records of protocol 1 came with 0.1.0: topic, partition, offset, key and SHA-256 of each
    v1/0.1.0/<name>.json    the value of one record, byte for byte
    v1/folders.json         the SHA-256 of each folder's records.json
    readers.json            the commits whose readers must read what this version writes
    record.py               records the event types that have no file yet, from a real agent over a real broker
    page.py                 writes the generated parts of docs/protocol.md

A recorded file is never changed or removed, and the folder of a released version gets no new one. A new event type, or a field
worth keeping, gets a file in the folder of the version at hand: run `python -m tests.corpus.record`. A release that changes
`events/` adds its commit to `readers.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from aiokafka.structs import ConsumerRecord

V1 = Path(__file__).parent / "v1"
FOLDERS = V1 / "folders.json"
CURRENT = V1 / version("lakewarden")
READERS = Path(__file__).parent / "readers.json"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One record of the corpus. `name` is the event's type, and its case where a type has several."""

    name: str
    topic: str
    partition: int
    offset: int
    key: str
    sha256: str
    folder: Path
    """That of the version with which it came."""

    @property
    def file(self) -> Path:
        """Where its value is."""
        return self.folder / f"{self.name}.json"

    @property
    def value(self) -> bytes:
        """Its value, as Kafka had it."""
        return self.file.read_bytes()

    @property
    def type(self) -> str:
        """The event's `type`."""
        return self.name.partition(".")[0]


def recorded() -> list[Recorded]:
    """All records of the corpus, by version and name."""
    return [
        each
        for folder in sorted(path for path in V1.iterdir() if path.is_dir())
        for each in recorded_in(folder)
    ]


def recorded_in(folder: Path) -> list[Recorded]:
    """The records that came with one version, by name."""
    listed = json.loads((folder / "records.json").read_text(encoding="utf-8"))
    return [Recorded(**each, folder=folder) for each in listed]


def add(name: str, record: ConsumerRecord, folder: Path = CURRENT) -> None:
    """Add a record to the folder of the version at hand. Raises `FileExistsError` for a name that has a file there."""
    records = folder / "records.json"
    folder.mkdir(exist_ok=True)
    listed = json.loads(records.read_text(encoding="utf-8")) if records.exists() else []
    digest = hashlib.sha256(record.value).hexdigest()
    added = Recorded(name, record.topic, record.partition, record.offset, record.key.decode(), digest, folder)
    with added.file.open("xb") as file:
        file.write(record.value)
    described = asdict(added)
    del described["folder"]
    write(records, sorted([*listed, described], key=lambda each: str(each["name"])))
    pinned = json.loads(FOLDERS.read_text(encoding="utf-8"))
    write(FOLDERS, pinned | {folder.name: hashlib.sha256(records.read_bytes()).hexdigest()})


def write(file: Path, listed: object) -> None:
    """Write a list of the corpus as JSON that people can compare."""
    file.write_text(json.dumps(listed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
