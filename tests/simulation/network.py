"""Carries requests of nodes to a service, and answers back. What the caller does meanwhile changes nothing about either.

A request acts at the service at its own instant, whether the caller still waits, has given up, is paused or dead. An answer
reaches a caller that runs, waits for one that is paused, and is lost with one that is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lakewarden.agent.stores.classify import Answer
from tests.simulation.faults import RequestFate
from tests.simulation.node import Node
from tests.simulation.timeline import Timeline


@dataclass(slots=True)
class Network:
    """`sent` and `answered` hear of every request and answer at a caller: the moments at which stopping it is interesting."""

    timeline: Timeline
    on_request: Callable[[Node], None]
    on_answer: Callable[[Node], None]
    _count: int = 0

    async def request(
        self, node: Node, what: str, act: Callable[[], Answer], fate: RequestFate
    ) -> Answer | None:
        """The service's answer; None if the connection broke. Waits for ever if neither happens: callers have timeouts."""
        self._count += 1
        name = f"#{self._count}"
        node.log(f"{name} → {what}{f' ({fate.fault})' if fate.fault else ''}")
        future: asyncio.Future[Answer | None] = node.loop.create_future()

        def deliver(answer: Answer | None) -> None:
            if future.done():
                return
            node.log(f"{name} ← {answer.status if answer else 'broken'}")
            future.set_result(answer)
            self.on_answer(node)

        def act_and_answer() -> None:
            own = act()
            self.timeline.log("store", f"{name} {own.status} {own.version or own.code}")
            if fate.answers is not None and fate.answer is None:
                self.timeline.after(fate.answers, lambda: node.deliver(lambda: deliver(own)))

        if fate.acts is not None:
            self.timeline.after(fate.acts, act_and_answer)
        if fate.answers is not None and fate.answer is not None:
            self.timeline.after(fate.answers, lambda: node.deliver(lambda: deliver(fate.answer)))
        if fate.breaks is not None:
            self.timeline.after(fate.breaks, lambda: node.deliver(lambda: deliver(None)))
        self.on_request(node)
        return await future
