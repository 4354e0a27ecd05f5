"""A person who puts something into a lock object that is no lock record, and mends it later.

Mending is done as the documentation asks: not before every lease that may have been believed in has ended.
"""

from __future__ import annotations

from random import Random

from lakewarden.agent.stores.memory import Objects
from lakewarden.handlers.lease.lock_object import LockRecord, render
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
    """Plan the two writes."""
    invalid = random.choice(INVALID_OBJECTS)
    repaired = render(LockRecord(expired=True, valid_until=1_799_999_999_000, owner=f"person-{at:.6f}"))

    def put(body: bytes) -> None:
        objects.contents[uri] = body
        oracles.on_tampering(uri, body)
        timeline.log("person", f"puts into {short_name(uri)}: {body.decode()!r}")

    timeline.plan(at, lambda: put(invalid))
    timeline.plan(repaired_at, lambda: put(repaired))
