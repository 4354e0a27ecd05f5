"""The simulated object store and its clients.

The store is `Objects` of `memory_store.py`, which passes the contract suite, and answers with the status codes of S3. A
client maps an answer to an outcome with the production table (`store_answers.py`), and a broken connection or its own timeout to
*unknown*, as every adapter does.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import anyio

from lakewarden.agent.stores.port import OnRequest
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    ReadOutcome,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.store_answers import Answer, classify_read, classify_write
from tests.servers.memory_store import Objects
from tests.simulation.faults import FaultInjector
from tests.simulation.network import Network
from tests.simulation.node import Node


class StoreObserver(Protocol):
    """Observes all requests: the oracles."""

    def on_request(self, node: Node, uri: str, body: bytes | None) -> None:
        """A node sends a read, or a write of this body."""
        ...

    def on_answer(self, node: Node, uri: str, outcome: ReadOutcome | WriteOutcome, *, write: bool) -> None:
        """A node receives an outcome."""
        ...

    def on_write(self, writer: str, uri: str, body: bytes, before: bytes | None, *, late: bool) -> None:
        """A write changed the object. `late`: its writer has timed out."""
        ...


@dataclass(slots=True)
class ObjectStore:
    """The store of a run."""

    objects: Objects
    observer: StoreObserver

    def read(self, uri: str) -> Answer:
        """GET, at this instant."""
        found = self.objects.get(uri)
        if isinstance(found, Absent):
            return Answer(404, "NoSuchKey")
        return Answer(200, version=found.version, body=found.body)

    def write(self, writer: str, uri: str, body: bytes, condition: Condition, *, late: bool) -> Answer:
        """PUT, at this instant."""
        before = self.objects.get(uri)
        outcome = self.objects.put(uri, body, condition)
        if isinstance(outcome, Won):
            former = before.body if isinstance(before, Found) else None
            self.observer.on_write(writer, uri, body, former, late=late)
            return Answer(200, version=outcome.version)
        if isinstance(before, Absent):
            return Answer(404, "NoSuchKey")
        return Answer(412, "PreconditionFailed")


@dataclass(slots=True)
class Wire:
    """One node's connection to the store. A result of None means that the connection broke or the request timed out."""

    node: Node
    store: ObjectStore
    network: Network
    faults: FaultInjector
    timeout: float

    async def get(self, uri: str) -> Answer | None:
        fate = self.faults.fate(self.node.name, writes=False, now=self.node.timeline.now)
        with anyio.move_on_after(self.timeout):
            return await self.network.request(
                self.node, f"GET {short_name(uri)}", lambda: self.store.read(uri), fate
            )
        return None

    async def put(self, uri: str, body: bytes, condition: Condition) -> Answer | None:
        """Send a conditional PUT."""
        fate = self.faults.fate(self.node.name, writes=True, now=self.node.timeline.now)
        under = "if-absent" if isinstance(condition, IfAbsent) else f"if-match {condition.version[:7]}…"
        what = f"PUT {short_name(uri)} {under} {body.decode()}"
        timed_out = False

        def act() -> Answer:
            return self.store.write(self.node.name, uri, body, condition, late=timed_out)

        answer: Answer | None = None
        with anyio.move_on_after(self.timeout):
            answer = await self.network.request(self.node, what, act, fate)
        timed_out = True
        return answer


class StoreClient:
    """The store as the lock's shell uses it (`agent/stores/port.py`), over a simulated connection."""

    requests = 0
    seconds_between_writes = 0.0
    keeps_versions: bool | None = None
    on_request: OnRequest = lambda *_: None

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> bool | None:
        return None

    async def read(self, uri: str) -> ReadOutcome:
        observer, node = self._wire.store.observer, self._wire.node
        observer.on_request(node, uri, None)
        answer = await self._wire.get(uri)
        outcome = Unknown("no answer") if answer is None else classify_read(answer)
        observer.on_answer(node, uri, outcome, write=False)
        return outcome

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        observer, node = self._wire.store.observer, self._wire.node
        observer.on_request(node, uri, body)
        answer = await self._wire.put(uri, body, condition)
        outcome = Unknown("no answer") if answer is None else classify_write(answer, condition)
        observer.on_answer(node, uri, outcome, write=True)
        return outcome

    async def delete(self, uri: str) -> None:
        raise NotImplementedError(f"a lock object is never deleted: {uri}")


def short_name(uri: str) -> str:
    """Return the object's short name."""
    return uri.rpartition("/")[2].removesuffix(".json")
