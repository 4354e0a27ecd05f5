"""Views as JSON: the names of a dataclass's fields are the names in the JSON.

A field with the metadata `flat` stands for the fields of its own value.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from json import dumps
from typing import Any

from pydantic import BaseModel

from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.assessment import Assessment
from lakewarden.handlers.explain.life import Life
from lakewarden.handlers.explain.timeline import Because

_OF_LIFE = (
    *("transaction", "writer", "table", "batch_id", "started", "ended", "lost_to", "bypassed_by"),
    *("aborted_at", "made_by"),
)
"""What the JSON has of a life, beside its outcome."""


def _fields(value: Any, without: tuple[str, ...] = ()) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, Life):
        return {"outcome": value.end, **{name: getattr(value, name) for name in _OF_LIFE}}
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no view")
    found: dict[str, Any] = {}
    for each in fields(value):
        part = getattr(value, each.name)
        if not each.metadata:
            found[each.name] = part
        elif part is not None:
            found |= _fields(part)
    if isinstance(value, Because):  # what doesn't apply is left out
        found = {
            name: each for name, each in found.items() if not (each is None or each is False or each == ())
        }
    if isinstance(value, Assessment):
        found |= {
            name: None if found[name] is None else timestamp(found[name] * 1000)
            for name in ("since", "until")
        }
        found["partitions"] = [{"partition": name, "times": times} for name, times in value.partitions]
    return {name: each for name, each in found.items() if name not in without}


as_json: Callable[[Any], str] = partial(dumps, default=_fields)
"""A view, or several of them, as JSON on one line. It is ASCII."""


def json_without(*names: str) -> Callable[[Any], str]:
    """As `as_json`, without the fields of these names."""
    return partial(dumps, default=partial(_fields, without=names))
