"""Explores every order of the steps of a small world, breadth first.

A *model* says how a world begins, which steps it can take next, and what may never happen. It drives the production code; the
engine knows nothing of locks or tables.

- **States.** Two worlds whose *forms* are equal are one state, and only the first is explored on. A form is made of tuples,
  lists, whole numbers, strings, booleans and None. Its key is a digest of its text, not Python's hash: `hash(-1) == hash(-2)`.
- **Sound.** A form that says too little would hide steps. So `compare_merged` explores both worlds of each merge by one step, and
  compares what they can do next.
- **Shortest.** The first violation has as few steps as any. It is printed as a story, one line for each step.
- **Cut.** A run that reaches its limit says how many states are still waiting. It is never complete.
- **Liveness.** `graph=True` keeps the steps between states. `starved` looks there for a cycle that leaves one out for ever, and
  `overdue` for a state from which one isn't served in time while another does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

W = TypeVar("W")
Form: TypeAlias = Any
"""Nested tuples and lists of int, str, bool and None."""
Act: TypeAlias = tuple[str, str, Any]
"""A kind of fault, or nothing; the name of a step; and what it does."""
Steps: TypeAlias = Iterable[tuple[str, Callable[[], W]]]
"""Each next step: its name, the same for equal worlds, and what makes the world after it. The world before it stays as it is."""


class BrokenError(Exception):
    """What may never happen has happened: the promise that is broken, and how."""


class Model(Protocol[W]):
    """What can happen in a world."""

    def begin(self) -> W: ...

    def steps(self, world: W) -> Steps[W]: ...

    def form(self, world: W) -> Form: ...

    def judge(self, world: W) -> None:
        """Raise `BrokenError` if the world breaks a promise. Asked once for each state."""

    def wants(self, world: W) -> dict[str, bool]:
        """Who wants something, and whether it has it. Asked only for a graph."""


@dataclass(frozen=True)
class After(Generic[W]):
    """A model that begins after these steps of another one."""

    model: Model[W]
    names: tuple[str, ...]

    def begin(self) -> W:
        world = self.model.begin()
        for name in self.names:
            world = dict(self.model.steps(world))[name]()
        return world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def affordable(acts: Iterable[Act], world: Any, kinds: frozenset[str]) -> Iterator[tuple[str, Any, Any]]:
    """The names and deeds of what can happen, each with the world that has paid: a fault of these kinds costs one of `faults`."""
    for kind, name, act in acts:
        if not kind:
            yield name, act, world
        elif world.faults and kind in kinds:
            yield name, act, replace(world, faults=world.faults - 1)


@dataclass(slots=True)
class Node:
    """A state in the graph."""

    wants: Mapping[str, bool]
    steps: list[tuple[str, int]] = field(default_factory=list)
    """Each step, and the number of the state after it."""


@dataclass(slots=True)
class Exploration:
    """What an exploration has seen. As text: how far it got, and the story of what is broken."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    """Of CPU."""
    waiting: int = 0
    """States that were found and not explored on, because the run was cut."""
    story: list[str] = field(default_factory=list)
    """The steps to the first violation, and the violation."""
    graph: list[Node] = field(default_factory=list)
    parents: list[tuple[int, str]] = field(default_factory=list)
    """Of each state: the state before it, and the step from there."""

    @property
    def end(self) -> Literal["complete", "cut", "broken"]:
        """Complete: every state was explored, and nothing was broken."""
        if self.story:
            return "broken"
        return "cut" if self.waiting else "complete"

    def __str__(self) -> str:
        end: str = self.end
        if end == "broken":
            end += f" after {len(self.story) - 1} steps"
        if end == "cut":
            end += f", {self.waiting:,} states waiting"
        far = f"{self.states:,} states, depth {self.depth}, {self.seconds:.1f} s of CPU: {end}"
        return "\n    ".join([far, *self.story])

    def break_at(self, state: int, last: str, broken: str) -> None:
        """The story: the steps to a state, the last one from there, and what is broken then."""
        names = [broken, last]
        while state > 0:
            state, name = self.parents[state]
            names.append(name)
        self.story = names[::-1]


def key_of(form: Form) -> bytes:
    return blake2b(repr(form).encode(), digest_size=16).digest()


def explore(
    model: Model[W], *, most: int | None = None, late: Callable[[], bool] = bool, graph: bool = False
) -> Exploration:
    """Explore at most so many states, or until it is late. With neither limit: all."""
    began = time.process_time()
    first = model.begin()
    numbers = {key_of(model.form(first)): 0}
    found = Exploration(parents=[(-1, "the beginning")])
    level = [(0, first)]
    story = found.parents[0]
    try:
        model.judge(first)
        while level:
            following: list[tuple[int, W]] = []
            for place, (number, world) in enumerate(level):
                if found.states == most or (found.states % 64 == 0 and late()):
                    found.waiting = len(level) - place + len(following)
                    return found
                found.states += 1
                story = found.parents[number]
                node = Node(model.wants(world) if graph else {})
                for name, run in model.steps(world):
                    found.steps += 1
                    story = (number, name)
                    after = run()
                    key = key_of(model.form(after))
                    known = numbers.get(key)
                    if known is None:
                        known = numbers[key] = len(found.parents)
                        found.parents.append(story)
                        model.judge(after)
                        following.append((known, after))
                    node.steps.append((name, known))
                if graph:
                    found.graph.append(node)
            level = following
            found.depth += bool(level)
    except Exception as broken:  # noqa: BLE001 - whatever the production code raises is a finding
        found.break_at(*story, f"{type(broken).__name__}: {broken}")
    finally:
        found.seconds = time.process_time() - began
    return found


def walk(model: Model[W], random: Random, steps: int) -> W:
    """The world after at most so many random steps."""
    world = model.begin()
    for _ in range(steps):
        possible = list(model.steps(world))
        if not possible:
            break
        world = random.choice(possible)[1]()
    return world


def compare_merged(model: Model[W], *, most: int) -> tuple[int, list[str]]:
    """Compare what follows in worlds that are one state. Returns how many were compared, and each difference as text.

    The names of steps are not compared: in worlds that differ by the order of equal writers, they are those of others.
    """
    first = model.begin()
    kept: dict[bytes, W] = {key_of(model.form(first)): first}
    following: dict[bytes, list[bytes]] = {}
    queue = [first]
    compared, differences = 0, []
    for world in queue:
        if compared >= most:
            break
        for name, run in model.steps(world):
            after = run()
            key = key_of(model.form(after))
            if key not in kept:
                kept[key] = after
                queue.append(after)
                continue
            if key not in following:
                following[key] = _next_keys(model, kept[key])
            compared += 1
            if _next_keys(model, after) != following[key]:
                differences.append(f"after {name!r}")
    return compared, differences


def _next_keys(model: Model[W], world: W) -> list[bytes]:
    return sorted(key_of(model.form(run())) for _, run in model.steps(world))


# -- liveness ----------------------------------------------------------------------------------------------------------


def starved(graph: list[Node], who: str, serves: str) -> list[str]:
    """A fair cycle in which others take the step `serves` for ever and `who` never does, as the names of its steps, sorted.

    A cycle is fair to `who` if it takes steps in it, or can take none in one of its states.
    """
    own = f"{who} "
    # States that were not explored are in no cycle.
    without = [
        [(name, target) for name, target in node.steps if name != own + serves and target < len(graph)]
        for node in graph
    ]
    after = [[target for _, target in steps] for steps in without]
    before = _backwards(after)
    examined: set[int] = set()
    for state, steps in enumerate(without):
        for name, target in steps:
            if state in examined or not name.endswith(serves):
                continue
            ahead = _reach(after, [target])
            if state not in ahead:
                continue
            cycle = ahead & _reach(before, [state])
            examined |= cycle
            names = {name for each in cycle for name, target in without[each] if target in cycle}
            moves = any(name.startswith(own) for name in names)
            waiting = (graph[each] for each in cycle if who in graph[each].wants)
            if moves or any(not any(name.startswith(own) for name, _ in node.steps) for node in waiting):
                return sorted(names)
    return []


def overdue(graph: list[Node], who: str, idle: str, passes: str, most: int) -> int | None:
    """The first state from which `who` can't be served before the step `passes` was taken `most` times, if `idle` takes none.

    All other choices are made in favour of `who`. So it is a finding if they don't help.
    """
    allowed = [
        [
            (name, target)
            for name, target in node.steps
            if who in graph[target].wants and not name.startswith(f"{idle} ")
        ]
        for node in graph
    ]
    now = _backwards([[target for name, target in steps if name != passes] for steps in allowed])
    later = _backwards([[target for name, target in steps if name == passes] for steps in allowed])
    served = _reach(now, (number for number, node in enumerate(graph) if node.wants.get(who)))
    for _ in range(most):
        served = _reach(now, [*served, *(number for each in served for number in later[each])])
    waiting = (number for number, node in enumerate(graph) if node.wants.get(who) is False)
    return next((number for number in waiting if number not in served), None)


def _backwards(targets: list[list[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in targets]
    for number, after in enumerate(targets):
        for target in after:
            before[target].append(number)
    return before


def _reach(targets: list[list[int]], start: Iterable[int]) -> set[int]:
    """These states, and all that follow."""
    queue = list(dict.fromkeys(start))
    reached = set(queue)
    for number in queue:
        later = set(targets[number]) - reached
        reached |= later
        queue += later
    return reached
