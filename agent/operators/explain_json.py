"""An explanation as JSON. Programs read it, so its names stay as they are when the code renames its own.

`docs/explain.md` describes the names. A field that is not in `_FIELDS` has the same name here and in the code.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel

from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.timeline import Explanation

KINDS: dict[type, str] = {
    timeline.Opened: "opened",
    timeline.Waiting: "waiting",
    timeline.Admitted: "admitted",
    timeline.Touched: "touched",
    timeline.Met: "met",
    timeline.Aborted: "aborted",
    timeline.Won: "won",
    timeline.GrantRequested: "asked",
    timeline.Granted: "granted",
    timeline.Renewed: "renewed",
    timeline.Completed: "completed",
    timeline.Skipped: "skipped",
    timeline.Abandoned: "abandoned",
    timeline.AbortRequested: "abort-requested",
    timeline.Ignored: "ignored",
    timeline.Void: "void",
    timeline.TakenOver: "taken",
    timeline.LockStep: "lock",
}
"""The `kind` of each step."""

_FIELDS: dict[type, dict[str, str]] = {
    Explanation: {"transaction": "who", "outcome": "fate", "heartbeats": "beats"},
    timeline.TransactionRef: {"id": "transaction"},
    timeline.RelatedTransaction: {"transaction": "who", "outcome": "fate"},
    timeline.Blocker: {"transaction": "who", "reason": "why"},
    timeline.LastBlocker: {"transaction": "who", "outcome": "fate"},
    timeline.LostConflict: {
        "winner_phase": "phase",
        "victim_rule": "by",
        "conflict_rule": "rule",
        "victim_event": "mine",
        "winner_event": "theirs",
    },
    timeline.Waiting: {"awaited": "what", "blockers": "behind"},
    timeline.Met: {"other": "who"},
    timeline.Aborted: {"phase_before": "stood", "lost_conflicts": "against"},
    timeline.Won: {"lost_conflict": "against"},
    timeline.Granted: {"unblocked_ms": "alone_ms"},
    timeline.Completed: {"phase_before": "stood"},
    timeline.Ignored: {"phase_before": "stood"},
}


def explanation_fields(explanation: Explanation) -> Any:
    """What JSON has of it."""
    return _jsonable(explanation)


def json_name(kind: type, field: str) -> str:
    """The JSON name of a field of a dataclass of `timeline`."""
    return "where" if field == "record" else _FIELDS.get(kind, {}).get(field, field)


def _jsonable(value: object) -> Any:
    if isinstance(value, tuple):
        return [_jsonable(each) for each in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value):
        return value
    kind = type(value)
    named = {json_name(kind, each.name): _jsonable(getattr(value, each.name)) for each in fields(value)}
    return {"kind": KINDS[kind], **named} if kind in KINDS else named
