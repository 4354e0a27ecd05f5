"""The gate for asyncio: the same transactions, and no call blocks the loop.

    async with AsyncGate(CommitGate("kafka:9092")) as gate:
        async with gate.transaction(table="s3://lake/flights", writer="arrivals", batch_id=7) as txn:
            await txn.touch("month=1/day=3", "*", "merge")
            staged = await compute()
            async with txn.commit() as grant:
                grant.version = await publish(staged)

The rules (docs/decisions/0031-the-gate-for-asyncio.md has the reasons):

- *One thread per open transaction* makes the calls of `Transaction`, in their order, and its end. No pool is shared: waiting
  transactions would keep the one that holds the grant from ending.
- *An abort is raised once in the body's task.* If the task waits in a call of this module, the call raises `CommitAborted`.
  At any other `await` the task is cancelled, and the end of the block turns that into `CommitAborted`.
- *A cancel from outside stays a cancel*, also beside an abort. It ends a wait for the admission or the grant.
- *A cancel during the publish leaves the outcome unknown.* The gate reports nothing.
- *The end isn't cancelled*: the outcome is reported and staged files are discarded, then the cancel is raised.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future as ThreadFuture, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, Self, TypeVar, Unpack

import anyio

from lakewarden.events import Marker, Operation
from lakewarden.spark_jobs.gate.errors import CommitAborted
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.gate.gate import TransactionGate, TransactionOptions, intent_of
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.gate.nesting import inside_others
from lakewarden.spark_jobs.gate.scope import marker_of
from lakewarden.spark_jobs.gate.transaction import Transaction

T = TypeVar("T")


class AsyncGate:
    """A `CommitGate` for an asyncio program. `async with` closes the gate at the end."""

    def __init__(self, gate: TransactionGate) -> None:
        """`gate` has the options. Blocking code of the same program may go on using it."""
        self._gate = gate

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the gate, as `CommitGate.close` does."""
        await asyncio.to_thread(self._gate.close)

    @asynccontextmanager
    async def transaction(self, **options: Unpack[TransactionOptions]) -> AsyncIterator[AsyncTransaction]:
        """Open a transaction; the block is its body. The arguments are those of `CommitGate.transaction`.

        Enter and leave the block in one task. Its child tasks may call the transaction too.
        """
        txn = self._gate.prepare(intent_of(**options))
        with inside_others(txn):
            thread = _Thread(f"lakewarden-{txn.id[:8]}")
            try:
                async with thread.block(
                    self._gate.block_of(txn), interrupt=txn.waits.interrupt, undo=_keep
                ) as block:
                    body = AsyncTransaction(txn, thread)
                    try:
                        yield body
                    except BaseException as error:  # noqa: BLE001 - the block raises it
                        block.error = body.ended(error)
                    else:
                        body.ended(None)
            finally:
                thread.close()


class AsyncGrant:
    """A grant, as `AsyncTransaction.commit` returns it. Set `version` before the block ends."""

    def __init__(self, grant: Grant, thread: _Thread) -> None:
        self._grant = grant
        self._thread = thread
        self.token = grant.token
        """The fencing token, as of `Grant`."""

    @property
    def version(self) -> str | None:
        return self._grant.version

    @version.setter
    def version(self, version: str | None) -> None:
        self._grant.version = version

    def check(self) -> None:
        """Raise `LeaseLost` or `CommitAborted` if you may no longer publish. Call it right before the last step."""
        self._grant.check()

    async def published(self, version: str | None) -> None:
        """Report that the commit is in the table, in `version`. The end of the block does this, unless it raises."""
        await self._thread.call(lambda: self._grant.published(version))

    def not_published(self) -> None:
        """Declare that nothing reached the table and nothing still can. The transaction ends as abandoned."""
        self._grant.not_published()


class AsyncTransaction:
    """A transaction between its intent and its end. `AsyncGate` creates it; its body calls its methods."""

    def __init__(self, txn: Transaction, thread: _Thread) -> None:
        """Call it in the task of the body."""
        task = asyncio.current_task()
        assert task is not None
        self._txn = txn
        self._thread = thread
        self._task = task
        self._cancels_before = task.cancelling()
        self._calls = 0
        """Calls of this module in which the body's task waits."""
        self._raised = False
        """Whether the body's task got the abort, as an error or as a cancel."""
        self._cancelled = False
        self.id, self.table, self.writer, self.batch_id = txn.id, txn.table, txn.writer, txn.batch_id
        txn.on_abort(self._on_abort)

    @property
    def aborted(self) -> bool:
        """Whether an abort arrived before the publish began."""
        return self._txn.aborted

    @property
    def discardable(self) -> bool:
        """Whether nothing that this transaction staged is, or can still come, in the table: it may be removed."""
        return self._txn.discardable

    def check(self) -> None:
        """Raise `CommitAborted` if an abort has arrived. The body's other awaits are cancelled by it."""
        try:
            self._txn.check()
        except CommitAborted:
            self._raised = self._raised or self._is_own_task()
            raise

    async def touch(self, partition: str, file_group: str, operation: Operation) -> None:
        """Publish a marker: this transaction is about to write the file group. Returns when Kafka has acknowledged it."""
        await self.touch_all([marker_of(partition, file_group, operation)])

    async def touch_all(self, markers: Iterable[Marker]) -> None:
        """Publish markers. Returns when Kafka has acknowledged all of them."""
        await self._call(lambda: self._txn.touch_all(markers))

    async def announce_instant(self, instant: str) -> None:
        """Publish the table format's own name of this transaction, as `Transaction.announce_instant` does."""
        await self._call(lambda: self._txn.announce_instant(instant))

    async def recognise(self, committed: Callable[[str, int], str | Awaitable[str | None] | None]) -> None:
        """Look up whether the table has this batch, as `Transaction.recognise` does. `committed` may be `async`."""
        lookup: Callable[[str, int], str | None] = self._thread.calling(committed)
        try:
            await self._call(lambda: self._txn.recognise(lookup))
        except asyncio.CancelledError:
            self._txn.waits.interrupt()  # it may be waiting for a grant
            raise

    def on_discard(self, function: Callable[[], object | Awaitable[object]]) -> None:
        """Run `function` at the end if nothing staged is, or can still come, in the table. It may be `async`."""
        self._txn.on_discard(self._thread.calling(function))

    def executor_channel(self) -> ExecutorChannel:
        """Return a channel that pickles, for workers in other processes to publish their markers. It blocks them."""
        return self._txn.executor_channel()

    async def footprint(self, timeout: float) -> tuple[Marker, ...]:
        """Return everything that this transaction touched, as `Transaction.footprint` does: the scope of a retry."""
        return await asyncio.to_thread(self._txn.footprint, timeout)

    @asynccontextmanager
    async def commit(self) -> AsyncIterator[AsyncGrant]:
        """Wait for the grant; the block publishes. If the block returns, the commit must be durable."""
        waiting = self._thread.block(
            self._txn.commit(), interrupt=self._txn.waits.interrupt, undo=Grant.not_published
        )
        self._calls += self._is_own_task()
        try:
            block = await waiting.__aenter__()
        except CommitAborted:
            self._raised = self._raised or self._is_own_task()
            raise
        finally:
            self._calls -= self._is_own_task()
        try:
            yield AsyncGrant(block.entered, self._thread)
        except BaseException as error:  # noqa: BLE001 - the block raises it
            block.error = error
        await waiting.__aexit__(None, None, None)

    def ended(self, error: BaseException | None) -> BaseException | None:
        """Return the error of the body: a cancel by an abort becomes the abort. From here on, the task isn't cancelled."""
        self._raised = True
        if not self._cancelled:
            return error
        from_outside = self._task.uncancel() > self._cancels_before
        if not isinstance(error, asyncio.CancelledError) or from_outside:
            return error
        verdict = self._txn.verdict()
        assert verdict is not None
        verdict.__cause__ = error
        return verdict

    async def _call(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread, and raise an abort that arrived during the call."""
        own = self._is_own_task()
        self._calls += own
        try:
            result = await self._thread.call(function)
        except CommitAborted:
            self._raised = self._raised or own
            raise
        finally:
            self._calls -= own
        self.check()
        return result

    def _is_own_task(self) -> bool:
        return asyncio.current_task() is self._task

    def _on_abort(self, _: CommitAborted) -> None:
        """On a thread of the gate."""
        with suppress(RuntimeError):  # the loop is closed, and the body with it
            self._thread.loop.call_soon_threadsafe(self._cancel_body)

    def _cancel_body(self) -> None:
        if self._raised or self._calls:
            return
        self._raised = self._cancelled = True
        self._task.cancel("the transaction was aborted")


class _Block:
    """What a context manager returned, and the error of its block."""

    def __init__(self, entered: Any) -> None:
        self.entered = entered
        self.error: BaseException | None = None


class _Thread:
    """The thread of one transaction. It starts with its first call."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    async def call(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread. If this task is cancelled, the call ends nevertheless, and its result is lost."""
        return await self.loop.run_in_executor(self._pool, function)

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for the thread that calls `function`, and awaits it in the program's loop if it is `async`."""

        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            if not inspect.isawaitable(result):
                return result
            return asyncio.run_coroutine_threadsafe(_awaited(result), self.loop).result()

        return call

    @asynccontextmanager
    async def block(
        self, manager: AbstractContextManager[T], *, interrupt: Callable[[], None], undo: Callable[[T], None]
    ) -> AsyncIterator[_Block]:
        """Enter and leave `manager` in the thread. The block never raises: it sets `error`.

        A cancel while it enters calls `interrupt`. If `manager` was entered nevertheless, `undo` is called, and it is left.
        """
        entering = self._pool.submit(manager.__enter__)
        if (cancel := await _ended(entering, interrupt)) is not None:
            if entering.exception() is None:
                undo(entering.result())
                await self._leave(manager, cancel)
            raise cancel
        block = _Block(entering.result())
        yield block
        await self._leave(manager, block.error)

    async def _leave(self, manager: AbstractContextManager[T], error: BaseException | None) -> None:
        details = (type(error), error, error.__traceback__) if error is not None else (None, None, None)
        leaving = self._pool.submit(manager.__exit__, *details)
        if (cancel := await _ended(leaving, lambda: None)) is not None:
            raise cancel
        if not leaving.result() and error is not None:
            raise error


async def _ended(call: ThreadFuture[Any], interrupt: Callable[[], None]) -> asyncio.CancelledError | None:
    """Wait until a call in a thread has ended. Return the cancel that arrived during the wait, after `interrupt`."""
    future = asyncio.wrap_future(call)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError as cancel:
        interrupt()
        with anyio.CancelScope(shield=True):  # a scope around the caller would cancel each of these waits
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        return cancel
    finally:
        if future.done() and not future.cancelled():
            future.exception()  # `call` is asked for it
    return None


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def _keep(_: object) -> None:
    """Undo nothing: a transaction that was opened is ended as abandoned."""
