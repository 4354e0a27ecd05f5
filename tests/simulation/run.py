"""One run of a seed."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.servers.memory_store import Objects
from tests.simulation.agents import Agent, SharedLog
from tests.simulation.batch import Outcome
from tests.simulation.environment import Environment
from tests.simulation.faults import FaultInjector
from tests.simulation.hudi import HudiWriter
from tests.simulation.network import Network
from tests.simulation.node import BusyLoopError, Node
from tests.simulation.oracles import Oracles
from tests.simulation.scenario import Machine, Scenario, Stop, draw, draw_stop
from tests.simulation.store import ObjectStore, Wire
from tests.simulation.tampering import tamper
from tests.simulation.timeline import Timeline

OLD_SHARE = 0.25
"""Of the agents that are of an older release, or of another cluster, whose locks can't be fenced."""


def run(seed: int) -> Outcome:
    """Run a seed. The same seed always gives the same run."""
    world = World(seed, draw(stream(seed, "scenario")))
    try:
        return world.run()
    finally:
        world.dispose()


def stream(seed: int | str, what: str) -> Random:
    """Return the random stream of one part of the run. Drawing more from one stream changes no other.

    The names of streams are part of what a seed means: renaming one needs a new `VERSION`.
    """
    return Random(f"{seed}/{what}")


class World:
    """Everything that takes part in a run."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.seed = seed
        self.scenario = scenario
        self.timeline = Timeline()
        self.oracles = Oracles(self.timeline, scenario.assumed)
        self.objects = Objects()
        self._faults = FaultInjector(scenario.profile, stream(seed, "weather"))
        self._network = Network(self.timeline, self._at_request, self._at_request)
        self._store = ObjectStore(self.objects, self.oracles)
        self._log = SharedLog(self.timeline, stream(seed, "log"), scenario.hint_delay)
        self._stops = stream(seed, "stops")
        releases = stream(seed, "releases")
        self._old = {each.name for each in scenario.agents if releases.random() < OLD_SHARE}
        self._machines = {each.name: each for each in (*scenario.agents, *scenario.hudi)}
        self._nodes: list[Node] = []
        self._restarts = 0

    def run(self) -> Outcome:
        """Run until every contender has had its lock, or until a violation."""
        scenario, timeline = self.scenario, self.timeline
        for machine in scenario.agents:
            self._start_agent(machine, machine.name, machine.stops)
        for machine in scenario.hudi:
            self._start_hudi(machine)
        random = stream(self.seed, "stranger")
        for uri, at, repaired_at in scenario.tampering:
            tamper(uri, self.objects, self.oracles, timeline, random, at=at, repaired_at=repaired_at)
        every = 0.3 * scenario.assumed.settings.poll_seconds
        for uri, at, until in scenario.forged_hints:
            timeline.plan(at, partial(self._log.forge_hints, uri, until - at, every))
        promised = scenario.assumed.clocks_agree
        try:
            timeline.run(scenario.bound if promised else scenario.fault_free_from, self._is_over)
        except BusyLoopError as error:
            self.oracles.violated("no crash", str(error))
        for node in self._nodes:
            self.oracles.check_node(node)
        if promised and not self.oracles.violations:
            self._check_liveness()
        return Outcome(self.seed, tuple(self.oracles.violations), tuple(timeline.trace), timeline.now)

    def dispose(self) -> None:
        """Free all resources."""
        for node in self._nodes:
            node.dispose()

    def _is_over(self) -> bool:
        if self.oracles.violations:
            return True
        return self.timeline.now > self.scenario.fault_free_from and all(node.ended for node in self._nodes)

    def _check_liveness(self) -> None:
        for node in self._nodes:
            if not node.ended:
                self.oracles.violated("every contender acquires", f"{node.name} still waits ({node.state})")

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _start_agent(self, machine: Machine, name: str, stops: tuple[Stop, ...]) -> None:
        node = self._node(machine, name)
        agent = Agent(
            self._environment(node),
            self._log,
            self.scenario.assumed.settings,
            self.scenario.locks,
            old=machine.name in self._old,
        )
        for stop in stops:
            self._plan_stop(node, stop)
        agent.start()

    def _start_hudi(self, machine: Machine) -> None:
        node = self._node(machine, machine.name)
        environment = self._environment(node)
        uri = environment.random.choice(list(self.scenario.locks))
        writer = HudiWriter(uri, environment, self.scenario.hudi_settings, self.scenario.locks[uri])
        for stop in machine.stops:
            self._plan_stop(node, stop)
        writer.start()

    def _node(self, machine: Machine, name: str) -> Node:
        node = Node(name, machine.clock, self.timeline, stream(self.seed, f"{name}/order"))
        self._nodes.append(node)
        return node

    def _environment(self, node: Node) -> Environment:
        wire = Wire(node, self._store, self._network, self._faults, self.scenario.request_timeout)
        return Environment(wire, self.oracles, stream(self.seed, node.name), self.scenario.fault_free_from)

    # -- stops -------------------------------------------------------------------------------------------------------

    def _plan_stop(self, node: Node, stop: Stop) -> None:
        self.timeline.plan(stop.at, lambda: self._stop(node, stop))

    def _stop(self, node: Node, stop: Stop) -> None:
        """Stop a node within the next callbacks. The other nodes notice later, whether it is dead or only silent."""
        until = None if stop.seconds is None else self.timeline.now + stop.seconds
        node.stop_within(self._stops.randrange(10), until, suspended=stop.suspended)
        lease = self.scenario.assumed.settings.validity
        if stop.seconds is None or stop.seconds > 0.3 * lease:
            self.timeline.after(self._stops.uniform(0.0, 0.5) * lease, lambda: self._log.node_fails(node))
        if stop.restart is not None:
            self.timeline.after(stop.restart, lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        node.kill()
        self._restarts += 1
        self._log.node_fails(node)
        machine = self._machines[node.name.partition(".")[0]]
        self._start_agent(machine, f"{machine.name}.{self._restarts}", ())

    def _at_request(self, node: Node) -> None:
        """Draw whether to stop a node that sent a request or received an answer: the most interesting moments."""
        chance, now = self.scenario.stops_at_requests, self.timeline.now
        if now < self.scenario.fault_free_from and self._stops.random() < chance:
            lease = self.scenario.assumed.settings.validity
            self._stop(node, draw_stop(self._stops, now, lease, self.scenario.fault_free_from, node.name))
