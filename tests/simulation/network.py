"""Carries requests from nodes to a service, and responses back.

A request takes effect at the service at its own time, whether its caller still waits, has timed out, is paused or is dead. A
response is delivered to a running caller, waits for a paused one, and is lost with a dead one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lakewarden.handlers.lease.store_answers import Answer
from tests.simulation.faults import RequestFate
from tests.simulation.node import Node
from tests.simulation.timeline import Timeline


@dataclass(slots=True)
class Network:
    """`on_request` and `on_answer` are called with the caller's node: the most interesting moments to stop it."""

    timeline: Timeline
    on_request: Callable[[Node], None]
    on_answer: Callable[[Node], None]
    _count: int = 0

    async def request(
        self, node: Node, what: str, act: Callable[[], Answer], fate: RequestFate
    ) -> Answer | None:
        """Return the service's answer, or None if the connection broke. Without either it never returns: callers time out."""
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
