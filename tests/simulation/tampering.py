"""A person who overwrites a lock object with something that is not a lock record, and repairs it later.

The repair follows the documentation: not before every lease on the object has ended.
"""

from __future__ import annotations

from random import Random

from lakewarden.handlers.lease.lock_object import LockRecord, render
from tests.servers.memory_store import Objects
from tests.simulation.oracles import Oracles
from tests.simulation.store import short_name
from tests.simulation.timeline import Timeline

INVALID_OBJECTS = (
    b"",
    b"locked by hand, ask Ana",
    b"{}",
    b'{"expired":false,"validUntil":1700000000,"owner":"in-seconds"}',
    b'{"expired":false,"validUntil":"2027-01-01T00:00:00Z","owner":"iso"}',
    b'{"expired":null,"validUntil":1800000000000,"owner":"x"}',
    b'{"expired":false,"owner":"x"}',
)


def tamper(
    uri: str,
    objects: Objects,
    oracles: Oracles,
    timeline: Timeline,
    random: Random,
    *,
    at: float,
    repaired_at: float,
) -> None:
    """Schedule the two writes."""
    invalid = random.choice(INVALID_OBJECTS)
    repaired = render(LockRecord(expired=True, valid_until=1_799_999_999_000, owner=f"person-{at:.6f}"))

    def put(body: bytes) -> None:
        objects.contents[uri] = body
        oracles.on_tampering(uri, body)
        timeline.log("person", f"overwrites {short_name(uri)} with {body.decode()!r}")

    timeline.plan(at, lambda: put(invalid))
    timeline.plan(repaired_at, lambda: put(repaired))
