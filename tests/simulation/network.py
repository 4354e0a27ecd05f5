"""Carries requests of nodes to a service, and answers back. What the caller does meanwhile changes nothing about either.

A request acts at the service at its own instant, whether the caller still waits, has given up, is paused or dead. An answer
reaches a caller that runs, waits for one that is paused, and is lost with one that is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lakewarden.agent.stores.classify import Answer
from tests.simulation.node import Node
from tests.simulation.timeline import Timeline
from tests.simulation.weather import Fate


@dataclass(slots=True)
class Network:
    """`sent` and `answered` hear of every request and answer at a caller: the moments at which stopping it is interesting."""

    timeline: Timeline
    sent: Callable[[Node], None]
    answered: Callable[[Node], None]
    _count: int = 0

    async def ask(self, node: Node, what: str, act: Callable[[], Answer], fate: Fate) -> Answer | None:
        """The service's answer; None if the connection broke. Waits for ever if neither happens: callers have timeouts."""
        self._count += 1
        name = f"#{self._count}"
        node.say(f"{name} → {what}{f' ({fate.trouble})' if fate.trouble else ''}")
        future: asyncio.Future[Answer | None] = node.loop.create_future()

        def arrives(answer: Answer | None) -> None:
            if future.done():
                return
            node.say(f"{name} ← {answer.status if answer else 'broken'}")
            future.set_result(answer)
            self.answered(node)

        def acts() -> None:
            own = act()
            self.timeline.say("store", f"{name} {own.status} {own.version or own.code}")
            if fate.answers is not None and fate.answer is None:
                self.timeline.after(fate.answers, lambda: node.deliver(lambda: arrives(own)))

        if fate.acts is not None:
            self.timeline.after(fate.acts, acts)
        if fate.answers is not None and fate.answer is not None:
            self.timeline.after(fate.answers, lambda: node.deliver(lambda: arrives(fate.answer)))
        if fate.breaks is not None:
            self.timeline.after(fate.breaks, lambda: node.deliver(lambda: arrives(None)))
        self.sent(node)
        return await future
