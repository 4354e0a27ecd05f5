"""The lock object: Hudi's three fields to the letter, and which foreign spellings are read.

Written: exactly `expired`, `validUntil` (epoch milliseconds) and `owner`, in this order, without spaces or newline,
as Hudi 1.2.0's own provider writes them. Read: any key order, spaces, unknown fields. Anything else (a missing
field, another type, a time that can't be milliseconds, no JSON) is `Malformed`: it is reported and never overwritten,
because nobody can tell whether somebody relies on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

OLDEST_MILLISECONDS = 100_000_000_000
"""March 1973 in milliseconds, the year 5138 in seconds: a smaller `validUntil` was written in seconds."""

NEWEST_MILLISECONDS = 100_000_000_000_000
"""The year 5138 in milliseconds, March 1973 in microseconds: a larger one would hold the lock for ever."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What the object says."""

    expired: bool
    valid_until: int
    owner: str

    def held_at(self, wall_ms: int, drift_ms: int) -> bool:
        """Whether a challenger must still respect it: not released, and not past its end by more than the drift."""
        return not self.expired and wall_ms <= self.valid_until + drift_ms


@dataclass(frozen=True, slots=True)
class Malformed:
    """Why the object is no lock."""

    why: str


def render(record: LockRecord) -> bytes:
    """The exact bytes that Hudi's provider would write for it."""
    fields = {"expired": record.expired, "validUntil": record.valid_until, "owner": record.owner}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse(body: bytes) -> LockRecord | Malformed:
    """The record in `body`, or why there is none."""
    if not body.strip():
        return Malformed("the object is empty")
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Malformed(f"not JSON: {body[:80]!r}")
    if not isinstance(fields, dict):
        return Malformed("not a JSON object")
    missing = [name for name in ("expired", "validUntil", "owner") if name not in fields]
    if missing:
        return Malformed(f"field missing: {', '.join(missing)}")
    expired, valid_until, owner = fields["expired"], fields["validUntil"], fields["owner"]
    if not isinstance(expired, bool):
        return Malformed(f"expired is not true or false: {expired!r}")
    if not isinstance(valid_until, int) or isinstance(valid_until, bool):
        return Malformed(f"validUntil is not a whole number of milliseconds: {valid_until!r}")
    if not OLDEST_MILLISECONDS <= valid_until < NEWEST_MILLISECONDS:
        return Malformed(f"validUntil is not in milliseconds: {valid_until}")
    if not isinstance(owner, str) or not owner:
        return Malformed(f"owner is not a name: {owner!r}")
    return LockRecord(expired, valid_until, owner)
