"""Files of Avro records, as table formats write them."""

from __future__ import annotations

import io
from typing import Any

import fastavro

NAMES = {bool: "boolean", int: "long", str: "string", bytes: "bytes"}


def avro_file(*records: dict[str, Any], **more: Any) -> bytes:
    """A file of these records, with the schema that follows from them."""
    body = io.BytesIO()
    fastavro.writer(body, schema_of(list(records)), records, **more)
    return body.getvalue()


def schema_of(values: list[Any], name: str = "entry") -> Any:
    """The schema of these values: of dictionaries a record."""
    some = [each for each in values if each is not None]
    if not some:
        return "null"
    if isinstance(some[0], dict):
        fields = [
            {"name": key, "type": schema_of([each[key] for each in some], f"{name}_{key}")} for key in some[0]
        ]
        found: Any = {"type": "record", "name": name, "fields": fields}
    elif isinstance(some[0], list):
        found = {"type": "array", "items": schema_of([one for each in some for one in each], name)}
    else:
        found = NAMES[type(some[0])]
    return found if len(some) == len(values) else ["null", found]
