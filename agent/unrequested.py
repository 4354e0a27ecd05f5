"""Turns a cancellation that nothing requested into an error.

A task group takes every `CancelledError` of a child for an end on request: it cancels the other children and returns, without an
error. Asyncio raises the same error in a task that awaits a future, or another task, which was cancelled. So aiokafka, which
cancels tasks of its own, could end all tasks of a session, while the agent stays in its consumer group and decides nothing. A
store's client could end the task of a lock.

Asyncio counts the cancellations that were requested of a task (`Task.cancelling`). Without one, the error came from what the task
awaited: `guarded` raises `TaskEndedError` in its place. In a session's task it ends the session, which is logged, and the next
session starts. A request to a store that ends so has an unknown outcome, like one whose answer is lost: it is read back or
retried. In any other task of a lock it stops the table, as any unexpected error does.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from lakewarden.agent.errors import TaskEndedError


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Raise `TaskEndedError`, which names `what`, for a cancellation that was not requested of the running task."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TaskEndedError(f"{what} was cancelled, and nothing requested it") from error
