"""A Java writer with Hudi's storage-based lock provider 1.2.0, with its rules (`reference/hudi.md` §1.3) and its defects.

- `tryLock` once per second: GET. If the object is absent, PUT if-absent. If it is released, or expired by more than 500 ms on
  the writer's wall clock, PUT if-match. Otherwise it waits. Owners are not compared, so a lock of its own whose response was
  lost blocks the writer.
- It renews under the cached version. If the write is lost, it interrupts its writer, even if its own earlier write was the
  winner. If the outcome is unknown or throttled, it continues with the old version.
- It releases under the cached version. Lost: the lock is dropped from memory. Throttled: three more attempts. Unknown: the lock
  is *kept in memory*, and the next `tryLock` "re-enters" it without a request, until it expires by the writer's clock.
- Each acquisition has a new owner id, except after such a failed release.

Status 409 and 5xx, including 503, are unknown, 412 is lost, 429 is throttled. Durations are scaled with the run's lease.
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
    """Its configuration, and the constants that can't be configured, in seconds."""

    validity: float
    renew_interval: float
    poll: float
    buffer: float


@dataclass(frozen=True, slots=True)
class Local:
    """The lock as the provider caches it."""

    record: LockRecord
    version: str


class HudiWriter:
    """One writer process for one table."""

    def __init__(self, uri: str, environment: Environment, settings: HudiSettings, usage: LockUsage) -> None:
        self.node = environment.node
        self._uri = uri
        self._environment = environment
        self._wire = environment.wire
        self._oracles = environment.oracles
        self._settings = settings
        self._usage = usage
        self._random = environment.random
        self._owners = 0
        self._local: Local | None = None

    def start(self) -> None:
        self._oracles.add_node(self.node)
        self.node.start(self._run())

    async def _run(self) -> None:
        fault_free = False
        while not fault_free:
            await anyio.sleep(self._random.expovariate(1 / self._usage.think))
            fault_free = self._environment.fault_free
            self._owners += self._local is None
            while not await self._try_lock():
                await anyio.sleep(self._settings.poll)
            await self._write()
            self._oracles.on_hudi_released(self.node, self._uri)
            await self._unlock()

    async def _write(self) -> None:
        """Commit for a while, renewing the lock."""
        with anyio.move_on_after(self._random.expovariate(1 / self._usage.hold)):
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
        """Renew once. Return False if the writer must be interrupted."""
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
