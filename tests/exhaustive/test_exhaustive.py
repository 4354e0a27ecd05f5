"""No order of steps breaks a promise in these small worlds, each planted bug is found, and the forms hide nothing.

`make unit` runs the smallest scopes, `make test-all` every scope that is complete, and all planted bugs.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import pytest

from tests.exhaustive.engine import compare_merged, explore, starved
from tests.exhaustive.planted import PLANTED
from tests.exhaustive.scopes import SCOPES, Scope
from tests.exhaustive.table import SERVES

pytestmark = pytest.mark.unit

MOST = 60_000
"""States until a planted bug must be found."""
COMPARED = 1_500
"""Merges that are compared in each scope."""


def _marked(name: str, scope: Scope) -> object:
    return pytest.param(name, id=name, marks=() if scope.run == "unit" else pytest.mark.wide)


def unserved(scope: Scope, most: int | None = None) -> list[str]:
    """What an exploration of this scope finds: its story, or who is not served for ever."""
    found = explore(scope.model, most=most, graph=bool(scope.live))
    if found.story is not None:
        return found.story
    assert not found.waiting, str(found)
    starving = {who: starved(found.graph, who, SERVES) for who in scope.live}
    return [f"liveness: {who} starves beside {steps}" for who, steps in starving.items() if steps]


@pytest.mark.parametrize(
    "name", [_marked(name, scope) for name, scope in SCOPES.items() if scope.run != "explore"]
)
def test_no_order_breaks_a_promise(name: str) -> None:
    """A promise that holds in all tests that draw orders at random may still fail in one order of a million."""
    assert not unserved(SCOPES[name])


@pytest.mark.wide
@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_bug_is_found(name: str) -> None:
    """An exploration that can't find a bug proves nothing."""
    planted = PLANTED[name]
    scope = SCOPES[planted.scope]
    with ExitStack() as stack:
        for where, what, instead in planted.patches:
            stack.enter_context(patch.object(where, what, instead))
        story = unserved(scope, MOST)

    assert story
    assert planted.promise in story[-1], "\n".join(story)


@pytest.mark.parametrize(
    "name",
    [_marked(name, scope) for name, scope in SCOPES.items()],
)
def test_worlds_that_are_one_state_go_on_alike(name: str) -> None:
    """A form that says too little would hide orders, and the exploration would look complete."""
    compared, differences = compare_merged(SCOPES[name].model, most=COMPARED)

    assert compared
    assert not differences
