"""A Java writer with Hudi's storage-based lock provider 1.2.0, by its rules (`reference/hudi.md` §1.3), defects included.

- `tryLock` once a second: GET; absent → PUT if-absent; released, or past `validUntil` by more than 500 ms on its own wall
  clock → PUT if-match; anything else → not now. The owner isn't compared: a lock of its own whose answer was lost blocks it.
- Renewal by the cached version. Lost → its writer is interrupted, though it may be its own write that it lost to.
  Unknown or throttled → as if nothing had been, the version unchanged.
- Release by the cached version. Lost → forgotten. Throttled → three more tries. Unknown → the lock is *kept in memory*,
  and the next `tryLock` "re-enters" it without asking anybody, as long as it has not ended by its own clock.
- A fresh owner for each acquisition, except after such a failed release.

409 and 5xx are unknown, 412 lost, 429 throttled; 503 is unknown, too. Lengths are scaled with the run's lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio

from lakewarden.handlers.lease.conditional import Condition, IfAbsent, IfMatch
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from tests.simulation.agents import LockUsage
from tests.simulation.environment import Environment
from tests.simulation.store import short_name

Upsert: TypeAlias = Literal["success", "acquired by others", "unknown", "throttled"]


@dataclass(frozen=True, slots=True)
class HudiSettings:
    """Its configuration, and the constants that can't be configured. Seconds."""

    validity: float
    renew_interval: float
    poll: float
    buffer: float


@dataclass(frozen=True, slots=True)
class Local:
    """The lock as the provider remembers it."""

    record: LockRecord
    version: str


class HudiWriter:
    """One writer process, for one table."""

    def __init__(self, uri: str, environment: Environment, settings: HudiSettings, habits: LockUsage) -> None:
        self.node = environment.node
        self._uri = uri
        self._environment = environment
        self._wire = environment.wire
        self._oracles = environment.oracles
        self._settings = settings
        self._habits = habits
        self._random = environment.random
        self._owners = 0
        self._local: Local | None = None

    def start(self) -> None:
        """Bring the process up."""
        self._oracles.add_node(self.node)
        self.node.start(self._run())

    async def _run(self) -> None:
        fault_free = False
        while not fault_free:
            await anyio.sleep(self._random.expovariate(1 / self._habits.think))
            fault_free = self._environment.fault_free
            self._owners += self._local is None
            while not await self._try_lock():
                await anyio.sleep(self._settings.poll)
            await self._write()
            self._oracles.on_hudi_released(self.node, self._uri)
            await self._unlock()

    async def _write(self) -> None:
        """Commit something, while the heartbeat renews."""
        with anyio.move_on_after(self._random.expovariate(1 / self._habits.hold)):
            while await self._renew():
                pass

    async def _try_lock(self) -> bool:
        if self._local is not None:
            if self._valid(self._local.record):
                self.node.log(f"re-enters {short_name(self._uri)} from memory")
                return True
            self._local = None
        answer = await self._wire.get(self._uri)
        if answer is None or answer.status not in (200, 404):
            return False
        condition: Condition = IfAbsent()
        if answer.status == 200:
            found = parse(answer.body)
            if not isinstance(found, LockRecord) or self._valid(found):
                return False
            condition = IfMatch(answer.version or "")
        return await self._hold(condition) == "success"

    async def _hold(self, condition: Condition) -> Upsert:
        record = LockRecord(
            expired=False,
            valid_until=self.node.wall_ms() + round(self._settings.validity * 1000),
            owner=f"{self.node.name}-{self._owners}" if self._local is None else self._local.record.owner,
        )
        result, version = await self._upsert(record, condition)
        if result == "success":
            self._local = Local(record, version)
            self._oracles.on_hudi_acquired(self.node, self._uri, record.owner, record.valid_until)
        return result

    async def _renew(self) -> bool:
        """One heartbeat; false if it tells the writer to stop."""
        await anyio.sleep(self._settings.renew_interval)
        assert self._local is not None
        result: Upsert = "unknown"
        with anyio.CancelScope(shield=True):
            result = await self._hold(IfMatch(self._local.version))
        return result != "acquired by others"

    async def _unlock(self) -> None:
        assert self._local is not None
        record = LockRecord(
            expired=True, valid_until=self._local.record.valid_until, owner=self._local.record.owner
        )
        version = self._local.version
        result, _ = await self._upsert(record, IfMatch(version))
        for wait in (1, 2, 4):
            if result == "throttled":
                await anyio.sleep(wait * self._settings.poll)
                result, _ = await self._upsert(record, IfMatch(version))
        if result in ("success", "acquired by others"):
            self._local = None

    async def _upsert(self, record: LockRecord, condition: Condition) -> tuple[Upsert, str]:
        answer = await self._wire.put(self._uri, render(record), condition)
        if answer is None:
            return "unknown", ""
        match answer.status:
            case 200:
                return "success", answer.version or ""
            case 412:
                return "acquired by others", ""
            case 429:
                return "throttled", ""
            case _:
                return "unknown", ""

    def _valid(self, record: LockRecord) -> bool:
        return record.held_at(self.node.wall_ms(), round(self._settings.buffer * 1000))
