"""Recorded bytes of the protocol, which every later version must read.

    v1/records.json     which records there are: topic, partition, offset, key and SHA-256 of each
    v1/<name>.json      the value of one record, byte for byte
    readers.json        the commits whose readers must read what this version writes
    record.py           records the event types that have no file yet, from a real agent over a real broker
    page.py             writes the generated parts of docs/protocol.md

A recorded file is never changed or removed. A new event type, or a new field worth keeping, gets a new file: run
`python -m tests.corpus.record`. A release that changes `events/` adds its commit to `readers.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from aiokafka.structs import ConsumerRecord

FOLDER = Path(__file__).parent / "v1"
RECORDS = FOLDER / "records.json"
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

    @property
    def file(self) -> Path:
        """Where its value is."""
        return FOLDER / f"{self.name}.json"

    @property
    def value(self) -> bytes:
        """Its value, as Kafka had it."""
        return self.file.read_bytes()

    @property
    def type(self) -> str:
        """The event's `type`."""
        return self.name.partition(".")[0]


def recorded() -> list[Recorded]:
    """All records of the corpus, by name."""
    if not RECORDS.exists():
        return []
    return [Recorded(**each) for each in json.loads(RECORDS.read_text(encoding="utf-8"))]


def add(name: str, record: ConsumerRecord) -> None:
    """Add a record to the corpus. Raises `FileExistsError` for a name that has a file."""
    digest = hashlib.sha256(record.value).hexdigest()
    added = Recorded(name, record.topic, record.partition, record.offset, record.key.decode(), digest)
    with added.file.open("xb") as file:
        file.write(record.value)
    entries = sorted((asdict(each) for each in [*recorded(), added]), key=lambda each: str(each["name"]))
    RECORDS.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
