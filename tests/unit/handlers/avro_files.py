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
    match some:
        case []:
            return "null"
        case [{**first}, *_]:
            fields = [
                {"name": key, "type": schema_of([each[key] for each in some], f"{name}_{key}")}
                for key in first
            ]
            found: Any = {"type": "record", "name": name, "fields": fields}
        case [[*_], *_]:
            found = {"type": "array", "items": schema_of([one for each in some for one in each], name)}
        case [first, *_]:
            found = NAMES[type(first)]
    return found if len(some) == len(values) else ["null", found]
