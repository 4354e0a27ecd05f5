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
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from hashlib import blake2b
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

W = TypeVar("W")
Form: TypeAlias = Any
"""Nested tuples and lists of int, str, bool and None."""
Steps: TypeAlias = Iterable[tuple[str, Callable[[], W]]]
"""Each next step: its name, the same for equal worlds, and what makes the world after it. The world before it stays as it is."""


Act: TypeAlias = tuple[str, str, Any]
"""A kind of fault, or nothing; the name of a step; and what it does."""


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


@dataclass(slots=True)
class Exploration(Generic[W]):
    """What an exploration has seen."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    """Of CPU."""
    waiting: int = 0
    """States that were found and not explored on, because the run was cut."""
    story: list[str] | None = None
    """The steps to the first violation, and the violation."""
    graph: list[Node] = field(default_factory=list)
    parents: list[tuple[int, str]] = field(default_factory=list)
    """Of each state: the state before it, and the step from there."""

    @property
    def end(self) -> Literal["complete", "cut", "broken"]:
        """Complete: every state was explored, and nothing was broken."""
        if self.story is not None:
            return "broken"
        return "cut" if self.waiting else "complete"

    @property
    def complete(self) -> bool:
        return self.end == "complete"

    def __str__(self) -> str:
        more = f" after {len(self.story) - 1} steps" if self.story is not None else ""
        if self.end == "cut":
            more = f", {self.waiting:,} states waiting"
        return f"{self.states:,} states, depth {self.depth}, {self.seconds:.1f} s of CPU: {self.end}{more}"


@dataclass(slots=True)
class Node:
    """A state in the graph."""

    wants: dict[str, bool]
    steps: list[tuple[str, int]] = field(default_factory=list)
    """Each step, and the number of the state after it."""


class Former:
    """Writes a world as its form. A model's own says what counts of its names and times."""

    left_out: frozenset[str] = frozenset()
    """Fields that don't count."""

    def value(self, value: Any) -> Form:
        """A part of a world. What its kind says nothing special of is its fields."""
        match value:
            case None | bool() | int():
                return value
            case str():
                return self.name(value)
            case float():
                return self.time(value)
            case Enum():
                return value.name
            case set() | frozenset():
                return sorted((self.value(each) for each in value), key=repr)
            case list() | tuple():
                return [self.value(each) for each in value]
            case Mapping():
                items = [(self.value(key), self.value(each)) for key, each in value.items()]
                return sorted(items, key=repr)
            case _:
                kept = [each for each in field_names(value.__class__) if each not in self.left_out]
                return [type(value).__name__, *(self.field(each, getattr(value, each)) for each in kept)]

    def field(self, name: str, value: Any) -> Form:
        return self.value(value)

    def name(self, name: str) -> Form:
        return name

    def time(self, at: float) -> Form:
        raise NotImplementedError


def affordable(acts: Iterable[Act], world: Any, kinds: frozenset[str]) -> Iterator[tuple[str, Any, Any]]:
    """The names and deeds of what can happen, each with the world that has paid: a fault of these kinds costs one of `faults`."""
    for kind, name, act in acts:
        if not kind:
            yield name, act, world
        elif world.faults and kind in kinds:
            yield name, act, replace(world, faults=world.faults - 1)


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(each.name for each in fields(kind))


def key_of(form: Form) -> bytes:
    return blake2b(repr(form).encode(), digest_size=16).digest()


def explore(
    model: Model[W], *, most: int | None = None, seconds: float | None = None, graph: bool = False
) -> Exploration[W]:
    """Explore at most so many states, or for so many seconds. With neither limit: all."""
    began, until = time.process_time(), time.monotonic() + (seconds or 0.0)
    first = model.begin()
    numbers = {key_of(model.form(first)): 0}
    found: Exploration[W] = Exploration(parents=[(-1, "the beginning")])
    level = [(0, first)]
    story = found.parents[0]
    try:
        model.judge(first)
        while level:
            following: list[tuple[int, W]] = []
            for place, (number, world) in enumerate(level):
                late = seconds is not None and found.states % 64 == 0 and time.monotonic() >= until
                if late or found.states == most:
                    found.waiting = len(level) - place + len(following)
                    return found
                found.states += 1
                story = found.parents[number]
                node = Node(model.wants(world)) if graph else None
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
                    if node is not None:
                        node.steps.append((name, known))
                if node is not None:
                    found.graph.append(node)
            level = following
            found.depth += bool(level)
    except Exception as broken:  # noqa: BLE001 - whatever the production code raises is a finding
        found.story = [*story_of(found.parents, *story), f"{type(broken).__name__}: {broken}"]
    finally:
        found.seconds = time.process_time() - began
    return found


def story_of(parents: list[tuple[int, str]], number: int, last: str) -> list[str]:
    """The names of the steps to a state, and the last one from there."""
    names = [last]
    while number > 0:
        number, name = parents[number]
        names.append(name)
    return names[::-1]


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
    known = len(graph)
    """States that were not explored are in no cycle."""
    without = [
        [(name, target) for name, target in node.steps if name != f"{who} {serves}" and target < known]
        for node in graph
    ]
    for component in _components([[target for _, target in steps] for steps in without]):
        inside = set(component)
        names = {name for at in component for name, target in without[at] if target in inside}
        others = any(name.endswith(serves) for name in names)
        moves = any(name.startswith(f"{who} ") for name in names)
        waiting = (graph[at] for at in component if who in graph[at].wants)
        waits = any(not any(name.startswith(f"{who} ") for name, _ in node.steps) for node in waiting)
        if others and (moves or waits):
            return sorted(names)
    return []


def overdue(graph: list[Node], who: str, idle: str, passes: str, most: int) -> int | None:
    """The first state from which `who` can't be served before the step `passes` was taken `most` times, if `idle` takes none.

    All other choices are made in favour of `who`. So it is a finding if they don't help.
    """
    before: list[list[tuple[int, int]]] = [[] for _ in graph]
    for number, node in enumerate(graph):
        for name, target in node.steps:
            gives_up = who not in graph[target].wants
            if not gives_up and not name.startswith(f"{idle} "):
                before[target].append((number, int(name == passes)))
    level = [number for number, node in enumerate(graph) if node.wants.get(who)]
    reached: set[int] = set()
    for _ in range(most + 1):
        level = [number for number in dict.fromkeys(level) if number not in reached]
        reached.update(level)
        later = []
        for at in level:
            for number, cost in before[at]:
                if cost:
                    later.append(number)
                elif number not in reached:
                    reached.add(number)
                    level.append(number)
        level = later
    waiting = (number for number, node in enumerate(graph) if node.wants.get(who) is False)
    return next((number for number in waiting if number not in reached), None)


def _components(targets: list[list[int]]) -> Iterator[list[int]]:
    """The strongly connected components (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(targets)):
        if root in index:
            continue
        work = [(root, iter(targets[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            at, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == index[at]:
                    component: list[int] = []
                    while not component or component[-1] != at:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(targets[following])))
            elif following in on_stack:
                low[at] = min(low[at], index[following])
