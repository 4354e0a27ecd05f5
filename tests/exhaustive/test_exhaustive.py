"""No order of steps breaks a promise in these small worlds, each planted bug is found, and the forms hide nothing.

`make unit` runs the smallest scopes, `make test-all` every scope that is complete, and all planted bugs.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.exhaustive.engine import compare_merged
from tests.exhaustive.planted import PLANTED
from tests.exhaustive.scopes import SCOPES, Scope

pytestmark = pytest.mark.unit

GUARANTEES = (Path(__file__).parents[2] / "docs/guarantees.md").read_text()
"""It has the sizes of scopes."""
MOST = 60_000
"""States until a planted bug must be found."""
COMPARED = 200
"""Merges that are compared in each scope."""
MODULES = ("lease", "conflicts", "admission", "grants", "liveness", "replay", "facts")


def _marked(name: str, scope: Scope) -> object:
    return pytest.param(name, id=name, marks=() if scope.run == "unit" else pytest.mark.wide)


@pytest.mark.parametrize(
    "name", [_marked(name, scope) for name, scope in SCOPES.items() if scope.run != "explore"]
)
def test_no_order_breaks_a_promise(name: str) -> None:
    """A promise that holds in all tests that draw orders at random may still fail in one order of a million."""
    found = SCOPES[name].explore()

    assert found.end == "complete", str(found)
    [size] = re.findall(rf"^\| {re.escape(name)} \| ([\d,]+) \|$", GUARANTEES, re.MULTILINE)
    assert found.states == int(size.replace(",", ""))


@pytest.mark.wide
@pytest.mark.parametrize(("world", "bug"), [(world, bug) for world, bugs in PLANTED.items() for bug in bugs])
def test_a_planted_bug_is_found(world: str, bug: str) -> None:
    """An exploration that can't find a bug proves nothing, nor does one that finds it without the bug."""
    scope = SCOPES[world]
    promise, *patches = PLANTED[world][bug]
    with ExitStack() as stack:
        for where, what, instead in patches:
            stack.enter_context(patch.object(where, what, instead))
        found = scope.explore(most=MOST)

    assert found.end == "broken", str(found)
    assert promise in found.story[-1], str(found)
    if scope.run == "explore":
        assert not scope.explore(most=found.states).story


def test_each_module_of_the_core_has_planted_bugs() -> None:
    names = [name for bugs in PLANTED.values() for name in bugs]
    assert {name.partition(":")[0] for name in names} == set(MODULES)
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("name", [_marked(name, scope) for name, scope in SCOPES.items()])
def test_worlds_that_are_one_state_go_on_alike(name: str) -> None:
    """A form that says too little would hide orders, and the exploration would look complete."""
    compared, differences = compare_merged(SCOPES[name].model, most=COMPARED)

    assert compared
    assert not differences
