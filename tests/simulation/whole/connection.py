"""A process's connection to Kafka: requests are delayed, lost on either way, or take effect long after they timed out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import anyio

from tests.simulation.faults import FaultInjector
from tests.simulation.node import Node
from tests.simulation.whole.broker import Broker

T = TypeVar("T")

ANSWER_SECONDS = 1.0
"""How long a client waits for an answer before it retries."""
RETRY_SECONDS = 0.1
"""Delay between two attempts."""


Direction: TypeAlias = Literal["reads", "writes"]


@dataclass(frozen=True, slots=True)
class Lag:
    """A period in which what a node reads arrives late, or what it writes reaches the logs late."""

    node: str
    direction: Direction
    since: float
    until: float
    seconds: float


@dataclass(slots=True)
class Connection:
    """The connection of one process."""

    node: Node
    broker: Broker
    faults: FaultInjector
    lags: tuple[Lag, ...] = ()
    on_request: Callable[[Node], None] = lambda _: None
    """Called at every request: an interesting moment to stop a process."""

    async def request(
        self,
        act: Callable[[Callable[[T], None]], None],
        *,
        wait: float = ANSWER_SECONDS,
        direction: Direction | None = None,
    ) -> T | None:
        """Send one request. `act` runs at the broker and gets a function for the reply. None: broken or timed out."""
        node, timeline = self.node, self.node.timeline
        fate = self.faults.fate(node.name, writes=True, now=timeline.now)
        late = self._lag(direction)
        future: asyncio.Future[T | None] = node.loop.create_future()

        def arrives(answer: T | None) -> None:
            if not future.done():
                future.set_result(answer)

        def reply(answer: T) -> None:
            if fate.answers is not None and fate.answer is None:
                back = late if direction == "reads" else 0.0
                timeline.after(fate.answers + back, lambda: node.deliver(lambda: arrives(answer)))

        if fate.acts is not None:
            timeline.after(fate.acts + (late if direction == "writes" else 0.0), lambda: act(reply))
        broken = fate.breaks if fate.answer is None else fate.answers
        if broken is not None:
            timeline.after(broken, lambda: node.deliver(lambda: arrives(None)))
        self.on_request(node)
        with anyio.move_on_after(wait + late):
            return await future
        return None

    async def call(self, act: Callable[[], T], *, direction: Direction | None = None) -> T | None:
        """Send one request that the broker answers at once."""
        return await self.request(lambda reply: reply(act()), direction=direction)

    async def call_until_answered(self, act: Callable[[], T], *, direction: Direction | None = None) -> T:
        """Repeat a request until it is answered. It must be idempotent."""
        while (answer := await self.call(act, direction=direction)) is None:
            await anyio.sleep(RETRY_SECONDS)
        return answer

    def _lag(self, direction: Direction | None) -> float:
        now = self.node.timeline.now
        return sum(
            each.seconds
            for each in self.lags
            if each.direction == direction and each.node == self.node.name and each.since <= now < each.until
        )

    def reachable_from(self, at: float) -> float:
        """Return from when on, at this time or later, no outage keeps the broker from being reached."""
        outages = [each for each in self.faults.profile.periods if each.what == "outage"]
        return max([at, *(each.until for each in outages if each.since <= at < each.until)])
