"""The agent: its start, its sessions one after another, the back-off between them, and its stop.

At its start the agent probes the store of `lock_root`. It waits for a store that does not answer, and exits if the store refuses
access or ignores conditions.

It serves in one session after another (`session.py`). When a session ends, the agent discards all state in memory, and the next
session rebuilds it from the log. There is no other way of recovery. Only what `lasting.py` has outlives a session.
"""

import itertools
from contextlib import AsyncExitStack
from importlib.metadata import version

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka.errors import IllegalStateError, KafkaError

from lakewarden.agent import errors
from lakewarden.agent.clock import monotonic
from lakewarden.agent.kafka import missing_right
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.serving.gauges import set_readiness_gauges
from lakewarden.agent.serving.lasting import FullCollections, Lasting
from lakewarden.agent.serving.session import KafkaSession
from lakewarden.agent.settings import AGENT_CLIENT_ID, Settings
from lakewarden.agent.stores import LocationError, StoreProbeError, Stores, StoreUnreachableError
from lakewarden.agent.unrequested import guarded
from lakewarden.agent.watching.supervisor import Assignment
from lakewarden.events import UndecodableRecords
from lakewarden.handlers.group.readiness import AgentFacts, Limits, ReadinessCondition, conditions

log = structlog.get_logger()

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Back-off between sessions; the last value repeats, until a session was healthy for `HEALTHY_SECONDS`."""
STORE_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Back-off between probes of a store that does not answer at the start; the last value repeats."""

ENDING = "its session is ending"


class Agent:
    """Serves until `stop` is called. `ready` is set while every assigned partition is live."""

    def __init__(self, settings: Settings, collections: FullCollections | None = None) -> None:
        """`collections`: of this process, if it runs no other program."""
        if not settings.tables:
            raise errors.SettingsError(
                "tables is empty, so no table would be served; set it: --tables 's3://bucket/warehouse/*'"
            )
        self.settings = settings.model_copy(update={"kafka_client_id": AGENT_CLIENT_ID})
        self._lasting = Lasting(self.settings, collections)
        self._stopping = anyio.Event()
        self._session: KafkaSession | None = None
        self._problem = "it has just started"

    def stop(self) -> None:
        self._stopping.set()

    @property
    def ready(self) -> anyio.Event:
        return self._lasting.ready

    @property
    def metrics(self) -> AgentMetrics:
        """What it measures of itself. `set_gauges` first."""
        return self._lasting.metrics

    async def set_gauges(self) -> None:
        if self._session is not None:
            await self._session.set_gauges()
        set_readiness_gauges(self.metrics, self.conditions())
        self.metrics.undecodable.set(self.undecodable.total)
        self.metrics.memory_limit.set(self.settings.memory_bytes)
        self.metrics.info.labels(version("lakewarden"), self.settings.agent_id).set(1)

    def conditions(self) -> tuple[ReadinessCondition, ...]:
        facts = None if self._session is None else self._session.facts()
        if facts is None:
            facts = AgentFacts(
                monotonic(), problem="it is stopping" if self._stopping.is_set() else self._problem
            )
        return conditions(facts, Limits(self.settings.ready_seconds, self.settings.check_seconds))

    def assignment(self) -> Assignment | None:
        """The partitions that the consumer group has assigned to this agent, or None between two assignments."""
        return None if self._session is None else self._session.assignment()

    @property
    def undecodable(self) -> UndecodableRecords:
        return self._lasting.undecodable

    async def run(self) -> None:
        """Serve in session after session until stopped. Raises only errors that a retry would not resolve.

        Brokers that refuse the agent's credentials end it at its start. Later it retries: a rotation may be under way.
        """
        settings = self.settings
        async with AsyncExitStack() as stack:
            stores = Stores(settings, stack, self.metrics.on_store_request)
            await self._wait_for_lock_root(stores)
            failures = 0
            while not self._stopping.is_set():
                problem = await self._run_session(stores)
                if problem is None:
                    continue
                if isinstance(problem, errors.KafkaRefusedError) and not self._lasting.ever_ready:
                    raise problem
                if (right := missing_right(problem, settings)) is not None:
                    raise errors.KafkaRefusedError(right)
                failures = 0 if self._lasting.was_healthy() else failures
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                self._lasting.mark_not_ready()
                self._lasting.collect_garbage()
                served = "its last session ended: " if self._problem == ENDING else ""
                self._problem = f"{served}{str(problem) or repr(problem)}"
                log.warning(
                    "kafka.waiting",
                    bootstrap_servers=settings.bootstrap_servers,
                    problem=str(problem),
                    retry_seconds=wait,
                )
                with anyio.move_on_after(wait):
                    await self._stopping.wait()

    async def _run_session(self, stores: Stores) -> Exception | None:
        """Run one session. Return the error that ended it, or None after an orderly stop."""
        session = self._session = KafkaSession(self._lasting, stores)
        self._lasting.start_session()
        ended_by: Exception | None = None
        try:
            async with anyio.create_task_group() as background:
                try:
                    async with anyio.create_task_group() as foreground:
                        foreground.start_soon(self._cancel_on_stop, foreground.cancel_scope)
                        with guarded("the session"):
                            await session.open(background)
                            self._problem = ENDING  # of an earlier session, nothing is known to last
                            await session.serve()
                        foreground.cancel_scope.cancel("the session has ended")
                finally:
                    # The publisher and the locks run in the background until this is done. Each step has a time limit.
                    with anyio.CancelScope(shield=True), guarded("closing the session"):
                        await session.close()
                    background.cancel_scope.cancel()
        except* (*errors.SESSION_ENDS, KafkaError, OSError, IllegalStateError) as problems:
            ended_by = _first_leaf(problems)
        if ended_by is None and not self._stopping.is_set():
            ended_by = errors.TaskEndedError(
                "a background task of the session was cancelled, and nothing requested it"
            )
        self.metrics.on_session_end(ended_by)
        return ended_by

    async def _wait_for_lock_root(self, stores: Stores) -> None:
        """Open and probe the store of `lock_root`, again and again while it does not answer, until stopped."""
        lock_root = self.settings.lock_root
        if lock_root is None:
            return
        refusal: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_on_stop, tasks.cancel_scope)
                await self._retry_unreachable(stores, lock_root)
                tasks.cancel_scope.cancel()
        except* (StoreProbeError, LocationError) as problems:
            refusal = _first_leaf(problems)
        if refusal is not None:
            raise refusal

    async def _retry_unreachable(self, stores: Stores, lock_root: str) -> None:
        for failures in itertools.count():
            try:
                await stores.for_lock(lock_root + "/locks/probe.json")
            except StoreUnreachableError as error:
                wait = STORE_RETRY_SECONDS[min(failures, len(STORE_RETRY_SECONDS) - 1)]
                self._problem = f"the store of lock_root, {lock_root}, does not answer: {error}"
                log.warning("store.waiting", store=lock_root, problem=str(error), retry_seconds=wait)
                await anyio.sleep(wait)
            else:
                return

    async def _cancel_on_stop(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel("stop requested")


def _first_leaf(problems: BaseExceptionGroup[Exception]) -> Exception:
    leaf: BaseException = problems
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, Exception)
    return leaf
