"""One run of a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from aiokafka.structs import TopicPartition

from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.serving.periodic_check import LEDGER_BEGINNING_SECONDS
from lakewarden.events import CommitIntent, Marker, Operation
from lakewarden.events.access import partition_of
from lakewarden.handlers.lease.machine import LeaseSettings
from tests.servers.memory_store import Objects
from tests.simulation.agents import LockUsage
from tests.simulation.batch import Outcome
from tests.simulation.environment import Environment
from tests.simulation.faults import FaultInjector
from tests.simulation.hudi import HudiSettings, HudiWriter
from tests.simulation.network import Network
from tests.simulation.node import BusyLoopError, Node
from tests.simulation.oracles import Assumed
from tests.simulation.run import OLD_SHARE, stream as lock_stream
from tests.simulation.store import ObjectStore, Wire
from tests.simulation.timeline import Timeline
from tests.simulation.whole.additions import scenario_of
from tests.simulation.whole.agents import ObservedOwner, simulated
from tests.simulation.whole.broker import Broker, Record
from tests.simulation.whole.connection import Connection
from tests.simulation.whole.drawing import (
    draw_stop,
    draw_stop_at_publish,
    draw_suspension_after_grant,
    draw_suspension_before_publish,
    draw_suspension_before_resume,
)
from tests.simulation.whole.errors import PLANNED, Errors
from tests.simulation.whole.lock_watch import LockWatch
from tests.simulation.whole.losses import Losses
from tests.simulation.whole.operators import Corrections, Editions, Operators
from tests.simulation.whole.oracles import TAKEOVER_NOTICE_SECONDS, Oracles
from tests.simulation.whole.processes import Process, dispose, register
from tests.simulation.whole.scenario import (
    HANG_SECONDS,
    MANY_MARKERS,
    OTHER_LOCK,
    RESTART_SECONDS,
    STRANGER,
    TOPICS,
    Deletion,
    Machine,
    Scenario,
    Stop,
    TablePlan,
)
from tests.simulation.whole.strangers import Misplaced, Strangers, UsedIds
from tests.simulation.whole.table import LakeTable
from tests.simulation.whole.upgrade import RolledBackUpgrade
from tests.simulation.whole.watched import WatchedWriters
from tests.simulation.whole.writers import Driver, Job

MANY_MARKERS_CHANCE = 0.4
"""In seeds with a small memory budget: that a transaction touches many places."""


def run(seed: int) -> Outcome:
    """Run a seed. The same seed always gives the same run."""
    world = World(seed, scenario_of(seed, partial(stream, seed)))
    with simulated(world):
        try:
            return world.run()
        finally:
            world.dispose()


def stream(seed: int, what: str) -> Random:
    """Return the random stream of one part of the run, as in the lock's simulation."""
    return lock_stream(f"whole/{seed}", what)


class World:
    """Everything that takes part in a run."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.seed = seed
        self.scenario = scenario
        self.timeline = Timeline()
        self.owners: list[ObservedOwner] = []
        self.tables = {
            plan.uri: LakeTable(
                plan.uri, fenced=plan.fenced, records_batches=plan.records_batches, lock=plan.lock
            )
            for plan in scenario.tables
        }
        self.oracles = Oracles(
            self.timeline, scenario.settings, self.tables, scenario.additions.refusals, self.partition_of
        )
        counts = {each.name: each.partitions for each in TOPICS.settings(scenario.partitions)}
        self.broker = Broker(self.timeline, stream(seed, "broker"), counts, TOPICS.writers)
        self.broker.on_record = self._on_record
        self.errors = Errors(self.timeline, scenario.additions.errors)
        additions, knowledge = scenario.additions, self.oracles.knowledge

        self._injectors = [
            kind(self, stream(seed, name), chance)
            for kind, name, chance in (
                (Strangers, "strangers' records", additions.strangers),
                (UsedIds, "used ids in records", additions.used_ids),
                (Misplaced, "misplaced records", additions.misplaced),
                (Operators, "operators' requests", additions.operators),
                (Corrections, "operators' corrections", additions.corrections),
                (Editions, "editions", additions.editions),
            )
        ]
        self._kafka_faults = FaultInjector(scenario.kafka, stream(seed, "kafka"))
        refusals = scenario.additions.refusals
        periods = scenario.store.periods if refusals is None else (*scenario.store.periods, refusals)
        self._store_faults = FaultInjector(replace(scenario.store, periods=periods), stream(seed, "store"))
        self.table_faults = FaultInjector(scenario.store, stream(seed, "tables"))
        self._watch = LockWatch(
            self.timeline,
            self._assumed(),
            self.oracles,
            {plan.lock or "": plan.uri for plan in scenario.tables},
        )
        self._network = Network(self.timeline, self._at_request, self._at_request)
        self._objects = ObjectStore(Objects(), self._watch)
        self._stops = stream(seed, "stops")
        releases = stream(seed, "releases")
        self._old = {each.name for each in scenario.agents if releases.random() < OLD_SHARE}
        self._hangs = stream(seed, "hanging publishes")
        self._hung_bodies = stream(seed, "hanging bodies")
        self._refused_intents = stream(seed, "intents to refuse")
        self._many_markers = stream(seed, "many markers")
        self._upgrade = RolledBackUpgrade(self)
        self.losses = Losses(self)
        knowledge.lacking = self.losses.lacking
        knowledge.ledger_lacks = self.losses.ledger_lacks
        knowledge.unsure = self._deleted_since_checkpoint
        self._deleted = False
        self._processes: list[Process] = []
        self._programs: dict[str, Agent] = {}
        self._jobs: list[Job] = []
        self._restarts = 0
        self._comparisons: list[asyncio.Task[None]] = []
        for table in self.tables.values():
            table.on_landed = self.oracles.on_landed
        self._watched = WatchedWriters(self, stream(seed, "watched writers"))

    def run(self) -> Outcome:
        """Run until every batch is in its table, or until a violation."""
        scenario, timeline = self.scenario, self.timeline
        for machine in scenario.agents:
            timeline.plan(machine.starts, partial(self._start_agent, machine, machine.name, first=True))
        for plan in scenario.tables:
            self._start_writers(plan)
        self._plan_additions()
        for at in scenario.checks:
            timeline.plan(at, self._compare)
        if scenario.additions.errors:
            timeline.plan(scenario.fault_free_from + RESTART_SECONDS, self._restart_stopped)
        try:
            timeline.run(scenario.bound, self.is_over)
        except BusyLoopError as error:
            self.oracles.violated("no crash", str(error))
        if not self.oracles.violations:
            self._compare()
        for process in self._processes:
            if (failure := process.node.failure()) is not None:
                oracle = "an error stops one table" if PLANNED in failure else "no crash"
                self.oracles.violated(oracle, f"{process.node.name} failed: {failure}")
        for each in self._comparisons:
            if each.done() and not each.cancelled():
                each.result()
        if not self.oracles.violations:
            self._check_liveness()
        return Outcome(
            self.seed,
            tuple(self.oracles.violations),
            tuple(timeline.trace),
            timeline.now,
            {
                "commits": sum(len(table.landed) for table in self.tables.values()),
                "commits after their grant without a fence": self.oracles.windows,
            },
        )

    def _plan_additions(self) -> None:
        additions, timeline = self.scenario.additions, self.timeline
        if additions.rolled_back is not None:
            where = self.partition_of(self.scenario.tables[0].uri)
            self._upgrade.begin(where, *additions.rolled_back)
        if additions.deletion is not None:
            timeline.plan(additions.deletion.at, partial(self._delete_topics, additions.deletion))
        for at, batches in additions.checkpoints_restored:
            timeline.plan(at, partial(self._restore_checkpoints, batches))

    def dispose(self) -> None:
        """Free all resources."""
        for process in self._processes:
            dispose(process)

    def is_over(self) -> bool:
        """Whether nothing is left to be seen."""
        if self.oracles.violations:
            return True
        return self.timeline.now > self.scenario.fault_free_from and all(job.done for job in self._jobs)

    def _on_record(self, record: Record) -> None:
        if self.scenario.additions.losses:
            for owner in self.owners:
                owner.note_written(record)
        self.oracles.on_record(record)
        for each in self._injectors:
            each.on_record(record)

    def _restart_stopped(self) -> None:
        """An operator restarts each agent that has stopped a table. Until then its other tables must have gone on.

        The operator looks again later: a planned error may wait for the replay of the restarted agent.
        """
        self.timeline.after(RESTART_SECONDS, self._restart_stopped)
        restarted: set[str] = set()
        for owner in self.owners:
            node = owner.node
            if owner.tables.stopped.reasons and owner.phase == "live" and node.state == "running":
                owner.check_goes_on()
                restarted.add(node.name)
        for process in list(self._processes):
            if process.node.name in restarted:
                node = process.node
                node.log("gets a stop request")
                node.deliver(self._programs[node.name].stop)
                restart = partial(self._restart, node, self._machine(node), kill=True)
                self.timeline.after(self.scenario.settings.shutdown_seconds + 1.0, restart)

    def _check_liveness(self) -> None:
        for owner in self.owners:
            if owner.phase == "live" and owner.node.state == "running":
                self.oracles.check_owner(owner.number, owner.records.term, owner.node)
                self._check_ledger(owner)
        for number in range(self.scenario.partitions):
            self.oracles.check_incomplete(number, self.losses.gaps_shown(number))
        for job in self._jobs:
            if not job.done:
                self.oracles.violated(
                    "every batch commits", f"{job.writer} is still at batch {job.next_batch}"
                )
            for batch in range(job.next_batch):
                if job.table.find(job.writer, batch) is None:
                    self.oracles.violated("once", f"batch {batch} of {job.writer} is in no table")

    def _check_ledger(self, owner: ObservedOwner) -> None:
        """After a loss in the ledger, an owner has had time if no fault delays it, and it was live when it could have noticed."""
        lost_at = max(
            self.oracles.knowledge.ledger.lost_at.get(owner.number, 0.0), self.scenario.fault_free_from
        )
        notice = LEDGER_BEGINNING_SECONDS + TAKEOVER_NOTICE_SECONDS
        if min(owner.live_for(), self.timeline.now - lost_at) > notice and not (
            owner.tables.stopped.reasons or owner.replaced
        ):
            shown = TOPICS.ledger in self.losses.gaps_shown(owner.number)
            problem = self.oracles.knowledge.ledger.problem(owner.records.term, shown=shown)
            if problem is not None:
                self.oracles.violated("an incomplete log is noticed", problem)

    def _delete_topics(self, deletion: Deletion) -> None:
        self.timeline.log("log", f"deleted: {', '.join(deletion.topics)}")
        self.broker.delete(deletion.topics)
        self._deleted = True
        for topic in deletion.topics:
            for number in range(self.scenario.partitions):
                self.oracles.knowledge.on_loss(topic, number, 0, 0)
        if deletion.restart:
            self.restart_agents()

    def _deleted_since_checkpoint(self, number: int) -> bool:
        return self._deleted and TopicPartition(TOPICS.writers, number) not in self.broker.group.committed

    def _restore_checkpoints(self, batches: int) -> None:
        """Each writer begins again with an earlier batch, in a new driver."""
        self.timeline.log("table", f"the checkpoints of all writers lose {batches} batches")
        for job in self._jobs:
            self.begin_again(job.writer, max(0, job.next_batch - batches))

    def begin_again(self, writer: str, batch: int) -> bool:
        """The writer begins with an earlier batch, in a new driver, unless it is done."""
        job = next(each for each in self._jobs if each.writer == writer)
        if job.done:
            return False
        job.next_batch = batch
        for process in list(self._processes):
            node = process.node
            if node.name.partition(".")[0] == job.writer and node.state != "dead":
                node.kill()
                if node.name == job.process:
                    restart = partial(self._restart, node, self._machine(node), kill=True)
                    self.timeline.after(0.1, restart)
        return True

    def _compare(self) -> None:
        """Let each live owner compare its state with a replay, in its own process, between two callbacks."""
        for owner in self.owners:
            node = owner.node
            if node.state == "running" and owner.phase == "live":
                node.deliver(partial(self._start_comparison, owner))

    def _start_comparison(self, owner: ObservedOwner) -> None:
        self._comparisons.append(owner.node.loop.create_task(owner.compare()))

    # -- processes ---------------------------------------------------------------------------------------------------

    def _start_agent(self, machine: Machine, name: str, *, first: bool) -> None:
        process = self._process(machine, name)
        # The places are configured: looking tables up would need a request for each.
        places = (
            *(f"{plan.uri}=>{'hudi' if plan.lock else 'usual'}" for plan in self.scenario.tables),
            f"s3://lake/{STRANGER}-*=>default",
        )
        agent = Agent(self.scenario.settings.model_copy(update={"agent_id": name, "lock_places": places}))
        self._programs[name] = agent
        if self._upgrade.upgraded:
            self.oracles.upgraded.add(name)
        process.node.log("starts")
        process.node.start(agent.run())
        for stop in machine.stops if first else ():
            self._plan_stop(process.node, machine, stop)

    def _start_writers(self, plan: TablePlan) -> None:
        where = self.partition_of(plan.uri)
        table = self.tables[plan.uri]
        for machine, workload in plan.writers:
            job = Job(f"{machine.name}", table, where, workload)
            self._jobs.append(job)
            self._start_driver(machine, job, machine.name, first=True)
        if plan.hudi is not None and plan.lock is not None:
            self._start_hudi(plan.hudi, plan.lock)

    def _start_driver(self, machine: Machine, job: Job, name: str, *, first: bool) -> None:
        process = self._process(machine, name)
        job.process = name
        driver = Driver(self, process, job)
        process.node.start(driver.run())
        for stop in machine.stops if first else ():
            self._plan_stop(process.node, machine, stop)

    def _start_hudi(self, machine: Machine, lock: str) -> None:
        process = self._process(machine, machine.name)
        settings = self.scenario.settings
        hudi = HudiSettings(settings.hudi_validity_seconds, settings.hudi_renew_seconds, poll=0.5, buffer=0.5)
        usage = LockUsage(hold=0.6, think=4.0, stops_waiting=0.0, waits_for_release=1.0)
        environment = Environment(process.store, self._watch, process.random, self.scenario.fault_free_from)
        HudiWriter(lock, environment, settings=hudi, usage=usage).start()

    def _process(self, machine: Machine, name: str) -> Process:
        node = Node(name, machine.clock, self.timeline, stream(self.seed, f"{name}/order"))
        kafka = Connection(node, self.broker, self._kafka_faults, self.scenario.lags, self._at_request)
        store = Wire(
            node,
            self._objects,
            self._network,
            self._store_faults,
            self.scenario.settings.request_timeout_seconds,
        )
        process = Process(node, stream(self.seed, name), kafka, store, self.oracles.violated)
        process.cluster = None if machine.name in self._old else process.cluster
        register(process)
        self._processes.append(process)
        return process

    def partition_of(self, table: str) -> int:
        return partition_of(table, self.scenario.partitions)

    def _assumed(self) -> Assumed:
        settings = self.scenario.settings
        lease = LeaseSettings(
            validity=settings.hudi_validity_seconds,
            renew_interval=settings.hudi_renew_seconds,
            drift=settings.hudi_drift_seconds,
            margin=settings.margin_seconds,
        )
        return Assumed(lease, clocks_agree=True, hudi_buffer=0.5, fault_free=False)

    # -- stops -------------------------------------------------------------------------------------------------------

    def _plan_stop(self, node: Node, machine: Machine, stop: Stop) -> None:
        self.timeline.plan(max(stop.at, self.timeline.now), lambda: self._stop(node, machine, stop))

    def _stop(self, node: Node, machine: Machine, stop: Stop, callbacks: int = 0) -> None:
        if node.state != "running":
            return
        if stop.orderly:
            node.log("gets a stop request")
            node.deliver(self._programs[node.name].stop)
        else:
            until = None if stop.seconds is None else self.timeline.now + stop.seconds
            node.stop_within(self._stops.randrange(callbacks or 10), until, suspended=stop.suspended)
        if stop.restart is not None:
            self.timeline.after(stop.restart, lambda: self._restart(node, machine, kill=stop.seconds is None))

    def _restart(self, node: Node, machine: Machine, *, kill: bool) -> None:
        """Start another process. The old one is dead by then, or (a silent driver) resumes later."""
        if kill:
            node.kill()
        self._restarts += 1
        name = f"{machine.name}.{self._restarts}"
        if node.name in self._programs:
            self._start_agent(machine, name, first=False)
            return
        job = next(each for each in self._jobs if each.writer == machine.name)
        if not job.done:
            self._start_driver(machine, job, name, first=False)

    def _at_request(self, node: Node) -> None:
        """A node sends a request or receives an answer."""
        if self._draws_stop(node, self.scenario.stops_at_requests):
            stop = draw_stop(self._stops, self.timeline.now, self.scenario.fault_free_from, node.name)
            self._stop(node, self._machine(node), stop)

    def _perhaps_stop(
        self, chance: float, draw: Callable[[Random, float], Stop], callbacks: int, node: Node
    ) -> None:
        if self._draws_stop(node, chance):
            self._stop(node, self._machine(node), draw(self._stops, self.timeline.now), callbacks)

    def before_publish(self, node: Node) -> None:
        """A driver has checked its lease for the last time, and writes to its table next."""
        chance = self.scenario.suspensions_before_publish
        self._perhaps_stop(chance, draw_suspension_before_publish, 1, node)
        self.at_publish(node)

    def at_publish(self, node: Node) -> None:
        """A driver writes to its table, or has just written."""
        self._perhaps_stop(self.scenario.stops_at_publish, draw_stop_at_publish, 2, node)

    def after_grant(self, node: Node) -> None:
        """An agent has decided a grant, and publishes it next."""
        self._perhaps_stop(self.scenario.suspensions_after_grant, draw_suspension_after_grant, 4, node)

    def before_resume(self, node: Node) -> None:
        """An agent has kept a partition through a rebalance, and resumes when it has read the log."""
        chance = self.scenario.additions.suspensions_before_resume
        self._perhaps_stop(chance, draw_suspension_before_resume, 4, node)

    def _draws_stop(self, node: Node, chance: float) -> bool:
        return not node.name.startswith("hudi") and self._happens(self._stops, chance)

    def _happens(self, random: Random, chance: float) -> bool:
        """Whether it happens with this chance. After the faults nothing is drawn any more."""
        return self.timeline.now < self.scenario.fault_free_from and random.random() < chance

    def restart_agents(self) -> None:
        """An operator kills all agents, and restarts them some seconds later."""
        for process in list(self._processes):
            node = process.node
            if node.name in self._programs and node.state != "dead":
                node.kill()
                restart = partial(self._restart, node, self._machine(node), kill=True)
                self.timeline.after(RESTART_SECONDS / 2, restart)

    def kill_owner(self, number: int, restart: float) -> None:
        """Kill the agents that believe to own a partition."""
        alive = [each for each in self.owners if each.number == number and each.node.state == "running"]
        for node in dict.fromkeys(each.node for each in alive if each.phase != "released"):
            self._stop(node, self._machine(node), Stop(self.timeline.now, None, restart=restart))

    def draw_hang(self) -> float:
        """How long the publish of a driver hangs, while its heartbeats continue."""
        return HANG_SECONDS if self._happens(self._hangs, self.scenario.additions.hangs) else 0.0

    def draw_hung_body(self) -> bool:
        """Whether the work of a transaction hangs now."""
        return self._happens(self._hung_bodies, self.scenario.additions.hung_bodies)

    def draw_many_markers(self, operation: Operation) -> tuple[Marker, ...]:
        """Draw what a transaction touches beside its own places."""
        if not (self.scenario.additions.memory_mb and self._happens(self._many_markers, MANY_MARKERS_CHANCE)):
            return ()
        return tuple(
            Marker(partition="many", file_group=f"g{number}", operation=operation)
            for number in range(MANY_MARKERS)
        )

    def change_intent(self, intent: CommitIntent) -> CommitIntent:
        """Return the intent that a writer publishes: its own, or one that agents must refuse."""
        if not self._happens(self._refused_intents, self.scenario.additions.refused_intents):
            return intent
        too_large = {"priority": self.scenario.settings.max_priority + 1}
        return intent.model_copy(
            update=too_large if self._refused_intents.random() < 0.5 else {"lock": OTHER_LOCK}
        )

    def _machine(self, node: Node) -> Machine:
        name = node.name.partition(".")[0]
        writers = (machine for plan in self.scenario.tables for machine, _ in plan.writers)
        return next(each for each in (*self.scenario.agents, *writers) if each.name == name)
