"""Checks that a store honours conditions, before the agent keeps a lock in it. The safety of the lock depends on it.

"S3-compatible" is not enough: some stores ignore `If-None-Match` or `If-Match` and answer 200, so that two contenders would
both hold the lock. The probe makes three writes to a key of its own, then deletes it:

1. if-absent on a new key must win,
2. if-absent on the same key must lose,
3. if-match with another version must lose.
"""

import secrets
from typing import Final, NoReturn, assert_never

import anyio

from lakewarden.agent.errors import AgentError
from lakewarden.agent.stores.port import PROBE_FOLDER, ConditionalStore
from lakewarden.handlers.lease import conditional

_BODIES: Final = tuple(b'{"probe":%d}' % number for number in range(3))
"""Three different bodies, so that a version derived from the content can't match by accident."""


class StoreProbeError(AgentError):
    """The store can't hold locks as it is configured. The message says what to change."""


class StoreUnreachableError(StoreProbeError):
    """The store did not answer the probe. Retry; if it persists, check endpoint and network."""


class StoreRefusedError(StoreProbeError):
    """The store refused a request of the probe. Retry; if it persists, check credentials, clock and permissions."""


async def probe(store: ConditionalStore, folder_uri: str) -> None:
    """Return if the store honours both conditions, else raise `StoreProbeError`. Sends at most four requests."""
    uri = f"{folder_uri.rstrip('/')}/{PROBE_FOLDER}/{secrets.token_hex(8)}.json"
    try:
        first = await store.write(uri, _BODIES[0], conditional.IfAbsent())
        if not isinstance(first, conditional.Won):
            _raise_inconclusive(first, uri)
        _require_lost(
            await store.write(uri, _BODIES[1], conditional.IfAbsent()),
            "if-absent (If-None-Match: *; Google: generation 0)",
            uri,
        )
        stale = conditional.IfMatch(_different_version(first.version))
        _require_lost(
            await store.write(uri, _BODIES[2], stale),
            "if-match (If-Match: <etag>; Google: its generation)",
            uri,
        )
    finally:
        # Also when cancelled: no later run would delete this key.
        with anyio.CancelScope(shield=True):
            await store.delete(uri)


def _require_lost(outcome: conditional.WriteOutcome, condition: str, uri: str) -> None:
    match outcome:
        case conditional.Lost():
            return
        case conditional.Won():
            raise StoreProbeError(
                f"this store ignores the condition {condition}, so two writers could both acquire the lock; keep the "
                f"lock in a store with conditional writes (S3, Google, Azure, a current MinIO, a local disk): key={uri}"
            )
        case conditional.Throttled() | conditional.Unknown() | conditional.Refused():
            _raise_inconclusive(outcome, uri)
        case _:
            assert_never(outcome)


def _raise_inconclusive(
    outcome: conditional.Lost | conditional.Throttled | conditional.Unknown | conditional.Refused, uri: str
) -> NoReturn:
    match outcome:
        case conditional.Refused(why=why):
            raise StoreRefusedError(
                f"this store can't be written to; check bucket or container, credentials and write permission: {why} "
                f"key={uri}"
            )
        case conditional.Throttled(why=why) | conditional.Unknown(why=why):
            raise StoreUnreachableError(
                f"this store could not be reached in time; check endpoint, network and the credentials service: "
                f"{why} key={uri}"
            )
        case conditional.Lost(why=why):
            raise StoreProbeError(
                f"this store reports an object under a key that was never used, so its answers can't be trusted; "
                f"check for proxies or caches in front of it: {why} key={uri}"
            )
        case _:
            assert_never(outcome)


def _different_version(version: str) -> str:
    """Another version of the same form, because stores refuse a malformed version whether or not they honour conditions.

    It differs in the last digit, since the first may belong to the form: Azure's versions begin with 0x.
    """
    for place, character in reversed(tuple(enumerate(version))):
        if character.isdigit():
            return f"{version[:place]}{'1' if character == '0' else '0'}{version[place + 1 :]}"
    return version[:-1] + ("a" if version[-1:] != "a" else "b")
