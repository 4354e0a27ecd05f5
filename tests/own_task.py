"""Context managers for fixtures: pytest-asyncio runs the two halves of a fixture in two tasks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def in_own_task(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and exit `manager` in one task of its own.

    A task group or a cancel scope must be exited in the task that entered it. If the manager ends by itself, because
    one of its own tasks failed, its error is raised when the fixture is torn down.
    """
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def own() -> None:
        async with manager as value:
            entered.set_result(value)
            await leave.wait()

    task = asyncio.create_task(own())
    either: set[asyncio.Future[Any]] = {task, entered}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not entered.done():
        await task  # raises what the manager raised instead of starting
    try:
        yield entered.result()
    finally:
        leave.set()
        await task
