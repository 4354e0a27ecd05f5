"""Templates in the states that are rare: a missing name in one of them is an error, and fails the whole page."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime

import pytest

from lakewarden.agent.operators.agents import AgentsView, PartitionView
from lakewarden.agent.operators.explain import Candidate
from lakewarden.agent.operators.status import LockHolder, TableView
from lakewarden.agent.settings import Settings
from lakewarden.agent.web import views
from lakewarden.agent.web.follower import Changes, Follower
from lakewarden.agent.web.pages import Pages, seconds_clock
from lakewarden.agent.web.views import Sources, View
from lakewarden.handlers.setup import Member
from tests.unit.agent.web.test_server import AT, State, history, table

REFUSED = LockHolder(
    held=False, lock="l", agent="a", owner="o", valid_until=AT, last_step="lock-refused", detail="why"
)
UNKNOWN = PartitionView(0)
GONE = PartitionView(1, "gone-agent", running=False, term="t", taken=AT, unread=1, replay=2)
CANDIDATE = Candidate("one-of-two", "s3://lake/t", "w", None, 0, datetime.fromisoformat(AT))


def rendered(view: View) -> str:
    return Pages(Settings(web_listen=":0/base")).render(view, as_of=AT)


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (View("transaction", "t", "c", {"candidates": []}, live=False), "Explain"),
        (
            View("transaction", "t", "c", {"candidates": [CANDIDATE]}, live=False, problem="several"),
            "one-of-two",
        ),
        (
            View("agents", "t", "c", asdict(AgentsView("g", (), (UNKNOWN, GONE))), live=False),
            "nothing is granted",
        ),
        (
            View("agents", "t", "c", asdict(AgentsView("g", (Member(None, None),), (GONE,))), live=False),
            "not in the group now",
        ),
    ],
)
def test_a_view_without_some_of_its_parts_is_rendered(view: View, shown: str) -> None:
    assert shown in rendered(view)


@pytest.mark.parametrize(
    "query", [{}, {"page": "2"}, {"page": "3"}, {"page": "99"}, {"q": "t1"}, {"q": "zz"}]
)
def test_every_list_is_rendered_on_each_of_its_pages(query: dict[str, str]) -> None:
    """Partitions that agents refuse, lapsed locks, and more rows than one page has."""
    changes, settings = Changes(), Settings()
    follower = Follower(settings, changes)
    found = [
        TableView("lakewarden://partition/1", None, (), incomplete=("a gap",), refused="a newer decision"),
        TableView("s3://lake/a", REFUSED, ()),
        TableView("s3://lake/b", replace(REFUSED, last_step="lock-renewed"), ()),
        *(table(f"s3://lake/t{number}") for number in range(500)),
    ]
    follower.status = State(found, frozenset({"s3://lake/t1"}))  # type: ignore[assignment]
    past = history("w")
    past.refused.extend([past.refused[0]] * 499)
    follower.history = past
    sources = Sources(settings, follower)

    for build in (views.tables, views.locks, views.waits, views.refused):
        assert "</html>" in rendered(build(sources, query))


def test_a_record_with_an_impossible_time_is_drawn_without_it() -> None:
    assert seconds_clock(-1e15) == ""
