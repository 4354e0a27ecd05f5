"""Does this store honour conditions? Asked once, at start, because the lock rests on nothing else.

"S3-compatible" is not enough: some stores ignore `If-None-Match` or `If-Match` and answer 200, and two writers
would both hold the lock. So on a key of its own the probe makes the three writes that tell, and removes it:

1. if-absent on a new key must win,
2. if-absent on what is now there must lose,
3. if-match with a version that isn't there must lose.
"""

from __future__ import annotations

import secrets
from typing import Final, NoReturn, assert_never

import anyio

from lakewarden.agent.errors import AgentError
from lakewarden.agent.stores.port import PROBE_FOLDER, ConditionalStore
from lakewarden.handlers.lease.conditional import (
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)

_BODIES: Final = tuple(b'{"probe":%d}' % number for number in range(3))
"""Three different ones, so that a content-derived version can't match by accident."""


class StoreProbeError(AgentError):
    """No lock can be kept in this store as it is. Don't start on it; the message says what to change."""


class StoreUnreachableError(StoreProbeError):
    """The store gave no answer, so nothing is known of it. Ask again; at start, check endpoint and network."""


async def probe(store: ConditionalStore, folder_uri: str) -> None:
    """Return if the store honours both conditions, raise `StoreProbeError` if not: at most four requests."""
    uri = f"{folder_uri.rstrip('/')}/{PROBE_FOLDER}/{secrets.token_hex(8)}.json"
    try:
        first = await store.write(uri, _BODIES[0], IfAbsent())
        if not isinstance(first, Won):
            _raise_inconclusive(first, uri)
        _require_lost(
            await store.write(uri, _BODIES[1], IfAbsent()),
            "if-absent (If-None-Match: *; Google: generation 0)",
            uri,
        )
        stale = IfMatch(_different_version(first.version))
        _require_lost(
            await store.write(uri, _BODIES[2], stale),
            "if-match (If-Match: <etag>; Google: its generation)",
            uri,
        )
    finally:
        # Even when cancelled: the key is ours alone, and nobody else will ever remove it.
        with anyio.CancelScope(shield=True):
            await store.delete(uri)


def _require_lost(outcome: WriteOutcome, condition: str, uri: str) -> None:
    match outcome:
        case Lost():
            return
        case Won():
            raise StoreProbeError(
                f"this store ignores the condition {condition}, so two writers would both get the lock; keep the "
                f"lock in a store with conditional writes (s3, gs, azure, a current minio, a local disk): key={uri}"
            )
        case Throttled() | Unknown() | Refused():
            _raise_inconclusive(outcome, uri)
        case _:
            assert_never(outcome)


def _raise_inconclusive(outcome: Lost | Throttled | Unknown | Refused, uri: str) -> NoReturn:
    match outcome:
        case Refused(why=why):
            raise StoreProbeError(
                f"this store refuses to write there; check bucket or container, credentials and the right to write: {why} "
                f"key={uri}"
            )
        case Throttled(why=why) | Unknown(why=why):
            raise StoreUnreachableError(
                f"this store could not be reached, or not in time; check endpoint, network and what gives credentials: "
                f"{why} key={uri}"
            )
        case Lost(why=why):
            raise StoreProbeError(
                f"this store says that an object is there under a name nobody used before, so its answers can't "
                f"be relied on; check what stands between it and us: {why} key={uri}"
            )
        case _:
            assert_never(outcome)


def _different_version(version: str) -> str:
    """A version of the same shape that isn't this one: stores may refuse a malformed one for its form alone.

    The last digit is another, since the first may belong to the form: Azure's versions begin with 0x.
    """
    for place, character in reversed(tuple(enumerate(version))):
        if character.isdigit():
            return f"{version[:place]}{'1' if character == '0' else '0'}{version[place + 1 :]}"
    return version[:-1] + ("a" if version[-1:] != "a" else "b")
