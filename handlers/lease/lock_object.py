"""The lock object: the bytes that Hudi writes, and the variants that are accepted when it is read.

- Written: `expired`, `validUntil` (epoch milliseconds) and `owner`, in this order, without spaces or newline. Hudi 1.2.0's own
  provider writes the same bytes.
- Read: any key order, spaces and unknown fields are accepted.
- `owner`: the first half of an agent's owner id is `owner_prefix`, so that later owners of its Kafka partition recognise it
  (docs/decisions/0058-a-former-owners-lock.md). Other programs read it as any other id.
- Anything else is `Malformed`: a missing field, another type, a time that can't be milliseconds, no JSON. Such an object is
  reported and never overwritten, because another program may rely on it.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

OLDEST_MILLISECONDS = 100_000_000_000
"""March 1973 in milliseconds, the year 5138 in seconds. A smaller `validUntil` is in seconds."""

NEWEST_MILLISECONDS = 100_000_000_000_000
"""The year 5138 in milliseconds, March 1973 in microseconds. A larger `validUntil` would hold the lock for ever."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The content of the object."""

    expired: bool
    valid_until: int
    owner: str

    def held_at(self, wall_ms: int, drift_ms: int) -> bool:
        """Whether contenders must respect it: it is not released, and its end is not past by more than the drift."""
        return not self.expired and wall_ms <= self.valid_until + drift_ms


@dataclass(frozen=True, slots=True)
class Malformed:
    """The object is not a lock record, and why."""

    why: str


def owner_prefix(log: str, term: str, table: str) -> str:
    """How the owner ids begin by which one ownership of a Kafka partition holds the lock of one table.

    `log`: names the cluster and the topic that `term` is in. A copy of the log in another cluster gives other ids.
    """
    digest = hashlib.sha256(f"{log}\0{term}\0{table}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-"


def render(record: LockRecord) -> bytes:
    """The bytes that Hudi's provider writes for this record."""
    fields = {"expired": record.expired, "validUntil": record.valid_until, "owner": record.owner}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse(body: bytes) -> LockRecord | Malformed:
    """The lock record in `body`."""
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
        return Malformed(f"owner is not a non-empty string: {owner!r}")
    return LockRecord(expired, valid_until, owner)
