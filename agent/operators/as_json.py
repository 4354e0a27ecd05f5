"""Views as JSON: the names of a dataclass's fields are the names in the JSON."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from json import dumps
from typing import Any

from pydantic import BaseModel

from lakewarden.agent.time_text import timestamp
from lakewarden.handlers.assessment import Assessment
from lakewarden.handlers.explain.timeline import Because, Step


def _fields(value: Any, without: tuple[str, ...] = ()) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no view")
    named = {each.name: getattr(value, each.name) for each in fields(value) if each.name not in without}
    if isinstance(value, Step):  # the JSON of its event, and what is known beside it
        return {**_fields(named.pop("event")), **named}
    if isinstance(value, Because):  # what doesn't apply is left out
        return {name: each for name, each in named.items() if each not in (None, False, ())}
    if isinstance(value, Assessment):
        named |= {
            name: None if named[name] is None else timestamp(named[name] * 1000)
            for name in ("since", "until")
        }
        named["partitions"] = [{"partition": name, "times": times} for name, times in value.partitions]
    return named


as_json: Callable[[Any], str] = partial(dumps, default=_fields)
"""A view, or several of them, as JSON on one line. It is ASCII."""


def json_without(*names: str) -> Callable[[Any], str]:
    """As `as_json`, without the fields of these names."""
    return partial(dumps, default=partial(_fields, without=names))
