"""Checks that a store honours conditions, before the agent keeps a lock in it. The safety of the lock depends on it.

"S3-compatible" is not enough. Some stores ignore `If-None-Match` or `If-Match` and answer 200, so that two contenders would both
hold the lock. Others answer 412 to a right `If-Match`, or refuse every overwrite, so that no lease could be renewed. So the probe
makes every request of a lock, to a key of its own, and deletes the key:

| request | must | of the lock |
| --- | --- | --- |
| read | find nothing | the first look; a cache that keeps "absent" shows later |
| if-absent | win | the first acquisition |
| if-absent | lose | a second contender |
| if-match with another version | lose | a contender that has read an older record |
| read | find the first body under its version | after a loss; it shows that the two lost writes wrote nothing |
| if-match with the version that was read | win | a take-over |
| if-match with the same version | lose | a second contender for the take-over |
| if-match with the version that the take-over returned | win | a renewal |
| read | find the renewal's body under its version | the check that it was written |

A store that gives one wrong answer to one of them is refused (`tests/contract/test_probe.py`).
"""

import secrets
from typing import Final, NoReturn

import anyio

from lakewarden.agent.errors import AgentError
from lakewarden.agent.stores.port import PROBE_FOLDER, ConditionalStore
from lakewarden.handlers.lease import conditional

_OTHER_STORES: Final = (
    "keep the lock in a store with conditional writes (S3, Google, Azure, a current MinIO, a local disk)"
)


_NEVER_USED: Final = "an object under a key that was never used"


class StoreProbeError(AgentError):
    """The store can't hold locks as it is configured. The message says what to change."""


class StoreUnreachableError(StoreProbeError):
    """The store gave the probe no usable answer. Retry; if it persists, do what the message says."""


class StoreRefusedError(StoreProbeError):
    """The store refused a request of the probe. Retry; if it persists, check credentials, clock and permissions."""


async def probe(store: ConditionalStore, folder_uri: str) -> None:
    """Return if the store can hold locks, else raise `StoreProbeError`. Sends at most ten requests."""
    uri = f"{folder_uri.rstrip('/')}/{PROBE_FOLDER}/{secrets.token_hex(8)}.json"
    try:
        await _Probe(store, uri).run()
    finally:
        # Also when cancelled: no later run would delete this key.
        with anyio.CancelScope(shield=True):
            await store.delete(uri)


class _Probe:
    """The requests of one probe. Each write has another body, so that a version derived from it can't match by accident."""

    def __init__(self, store: ConditionalStore, uri: str) -> None:
        self._store = store
        self._uri = uri
        self._writes = 0
        self._created = False

    async def run(self) -> None:
        await self._find_nothing()
        created = await self._win(conditional.IfAbsent())
        self._created = True
        body = self._body()
        await self._lose(conditional.IfAbsent())
        await self._lose(conditional.IfMatch(_different_version(created)))
        seen = await self._find(body, created)
        taken_over = await self._win(conditional.IfMatch(seen))
        await self._lose(conditional.IfMatch(seen))
        renewed = await self._win(conditional.IfMatch(taken_over))
        await self._find(self._body(), renewed)

    def _body(self) -> bytes:
        """The body of the last write."""
        return b'{"probe":%d}' % self._writes

    async def _write(self, condition: conditional.Condition) -> conditional.WriteOutcome:
        self._writes += 1
        return await self._store.write(self._uri, self._body(), condition)

    async def _win(self, condition: conditional.Condition) -> str:
        """Write, and return the version. A win costs a pause where the store limits the writes of one object."""
        outcome = await self._write(condition)
        if isinstance(outcome, conditional.Won):
            await anyio.sleep(self._store.seconds_between_writes)
            return outcome.version
        if not isinstance(outcome, conditional.Lost):
            self._raise_inconclusive(outcome)
        if isinstance(condition, conditional.IfAbsent):
            raise self._untrusted(f"{_NEVER_USED}: {outcome.why}")
        raise StoreProbeError(
            f"this store rejects a write under the object's current version, {_text_of(condition)}, so no lease could be "
            f"renewed; {_OTHER_STORES}: {outcome.why} key={self._uri}"
        )

    async def _lose(self, condition: conditional.Condition) -> None:
        outcome = await self._write(condition)
        if isinstance(outcome, conditional.Won):
            raise StoreProbeError(
                f"this store ignores the condition {_text_of(condition)}, so two writers could both acquire the lock; "
                f"{_OTHER_STORES}: key={self._uri}"
            )
        if not isinstance(outcome, conditional.Lost):
            self._raise_inconclusive(outcome)

    async def _find_nothing(self) -> None:
        outcome = await self._store.read(self._uri)
        if isinstance(outcome, conditional.Found):
            raise self._untrusted(_NEVER_USED)
        if not isinstance(outcome, conditional.Absent):
            self._raise_inconclusive(outcome)

    async def _find(self, body: bytes, version: str) -> str:
        """Read what was written, and return the version that the read has."""
        outcome = await self._store.read(self._uri)
        if isinstance(outcome, conditional.Absent):
            raise self._untrusted("no object right after it accepted a write")
        if not isinstance(outcome, conditional.Found):
            self._raise_inconclusive(outcome)
        if outcome.body != body or outcome.version.strip('"') != version.strip('"'):
            raise self._untrusted("another content or version than that of the last write that it accepted")
        return outcome.version

    def _untrusted(self, what: str) -> StoreProbeError:
        return StoreProbeError(
            f"this store reports {what}, so its answers can't be trusted; check for proxies or caches in front of it: "
            f"key={self._uri}"
        )

    def _raise_inconclusive(
        self, outcome: conditional.Throttled | conditional.Unknown | conditional.Refused
    ) -> NoReturn:
        end = f"{outcome.why} key={self._uri}"
        if not isinstance(outcome, conditional.Refused):
            raise StoreUnreachableError(
                "no answer shows whether this store can hold locks; check endpoint, network, proxies and the credentials "
                f"service: {end}"
            )
        if not self._created:
            raise StoreRefusedError(
                "this store can't be read or written to; check bucket or container, credentials, the clock, and the rights to "
                f"write objects, to read them and to list the bucket (without it, S3 refuses to read an absent one): {end}"
            )
        raise StoreRefusedError(
            "this store accepts a new object and then refuses a request that a lock needs; check retention, Object Lock, "
            f"immutability policies, the rights to read and to replace objects, and proxies: {end}"
        )


def _text_of(condition: conditional.Condition) -> str:
    if isinstance(condition, conditional.IfAbsent):
        return "if-absent (If-None-Match: *; Google: generation 0)"
    return "if-match (If-Match: <etag>; Google: its generation)"


def _different_version(version: str) -> str:
    """Another version of the same form, because stores refuse a malformed version whether or not they honour conditions.

    It differs in the last digit, since the first may belong to the form: Azure's versions begin with 0x. Without one it differs
    in its last character.
    """
    digits = [place for place, character in enumerate(version) if character.isdigit()]
    place = digits[-1] if digits else len(version.rstrip('"')) - 1
    return f"{version[:place]}{'1' if version[place] == '0' else '0'}{version[place + 1 :]}"
