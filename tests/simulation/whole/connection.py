"""A process's way to Kafka: requests that are delayed, lost on the way there or back, or act long after they were given up."""

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
"""After so long without an answer a client tries again."""
RETRY_SECONDS = 0.1
"""Between two tries."""


Direction: TypeAlias = Literal["reads", "writes"]


@dataclass(frozen=True, slots=True)
class Lag:
    """Direction a node reads reaches it late for a while, or what it writes reaches the logs late."""

    node: str
    what: Direction
    since: float
    until: float
    seconds: float


@dataclass(slots=True)
class Connection:
    """One process's."""

    node: Node
    broker: Broker
    faults: FaultInjector
    lags: tuple[Lag, ...] = ()
    on_request: Callable[[Node], None] = lambda _: None
    """Is told of every request: the moments at which stopping a process is interesting."""

    async def request(
        self,
        act: Callable[[Callable[[T], None]], None],
        *,
        wait: float = ANSWER_SECONDS,
        what: Direction | None = None,
    ) -> T | None:
        """One try. `act` happens at the broker and is handed the way back; None: it broke, or took too long."""
        node, timeline = self.node, self.node.timeline
        fate = self.faults.fate(node.name, writes=True, now=timeline.now)
        late = self._lag(what)
        future: asyncio.Future[T | None] = node.loop.create_future()

        def arrives(answer: T | None) -> None:
            if not future.done():
                future.set_result(answer)

        def reply(answer: T) -> None:
            if fate.answers is not None and fate.answer is None:
                back = late if what == "reads" else 0.0
                timeline.after(fate.answers + back, lambda: node.deliver(lambda: arrives(answer)))

        if fate.acts is not None:
            timeline.after(fate.acts + (late if what == "writes" else 0.0), lambda: act(reply))
        broken = fate.breaks if fate.answer is None else fate.answers
        if broken is not None:
            timeline.after(broken, lambda: node.deliver(lambda: arrives(None)))
        self.on_request(node)
        with anyio.move_on_after(wait + late):
            return await future
        return None

    async def call(self, act: Callable[[], T], *, what: Direction | None = None) -> T | None:
        """One try of what the broker answers at once."""
        return await self.request(lambda reply: reply(act()), what=what)

    async def call_until_answered(self, act: Callable[[], T], *, what: Direction | None = None) -> T:
        """Ask until there is an answer: what is asked must bear to be done more than once."""
        while (answer := await self.call(act, what=what)) is None:
            await anyio.sleep(RETRY_SECONDS)
        return answer

    def _lag(self, what: Direction | None) -> float:
        now = self.node.timeline.now
        return sum(
            each.seconds
            for each in self.lags
            if each.what == what and each.node == self.node.name and each.since <= now < each.until
        )

    def reachable_from(self, at: float) -> float:
        """From when on, at that time or later, the broker can be reached by those whom nothing else cuts off."""
        outages = [each for each in self.faults.profile.periods if each.what == "outage"]
        return max([at, *(each.until for each in outages if each.since <= at < each.until)])
