"""Templates in the states that are rare: a missing name in one of them is an error, and fails the whole page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape
from importlib.resources import files

import pytest

from lakewarden.agent.operators.agents import AgentsView, PartitionView
from lakewarden.agent.operators.explain import Candidate
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView
from lakewarden.agent.operators.text import lines
from lakewarden.agent.settings import Settings
from lakewarden.agent.web import views
from lakewarden.agent.web.follower import Follower
from lakewarden.agent.web.pages import Pages, bars, clock, duration, iso
from lakewarden.agent.web.views import View
from lakewarden.events import CommitCompleted, encode
from lakewarden.handlers.explain.condition import Facts, condition
from lakewarden.handlers.setup import Member
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.agent.web.test_server import AT, State, history, table
from tests.unit.events.building import made
from tests.unit.handlers.explain.test_condition import INCIDENTS

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
    follower = Follower(Settings())
    found = [
        TableView("lakewarden://partition/1", None, (), incomplete=("a gap",), refused="a newer decision"),
        TableView("s3://lake/a", REFUSED, ()),
        TableView("s3://lake/b", replace(REFUSED, last_step="lock-renewed"), ()),
        *(table(f"s3://lake/t{number}") for number in range(500)),
    ]
    found[-1] = replace(found[-1], waits_known=False)
    follower.status = State(found)  # type: ignore[assignment]
    past = history("w")
    past.refused.extend([past.refused[0]] * 499)
    follower.history = past

    for build in (views.tables, views.locks, views.waits, views.refused):
        assert "</html>" in rendered(build(follower, query))


def test_a_record_with_an_impossible_time_is_drawn_at_the_closest_one() -> None:
    assert clock(iso(-1e15)) == "00:00:00"


# -- the head and the list of tables -----------------------------------------------------------------------------------


def at_work(*found: TableView, members: int = 1) -> Follower:
    """A follower of these tables."""
    follower = Follower(Settings())
    follower.status = State(list(found))  # type: ignore[assignment]
    follower.members = tuple(Member(f"a{number}", "1") for number in range(members))
    return follower


def hanging(uri: str, minutes: int = 12) -> TableView:
    """A table whose grant is held for so long."""
    since = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="milliseconds")
    granted = TransactionView("A", "crm", 7, "granted", since, None, 1, 2, since, None)
    return TableView(uri, None, (granted,))


@pytest.mark.parametrize(
    ("found", "members", "said"),
    [
        pytest.param(tuple, 1, "No table is in use.", id="none"),
        pytest.param(lambda: (TableView("s3://l/a", None, ()),), 1, "1 table, ok", id="one"),
        pytest.param(
            lambda: (hanging("s3://l/d/t"),),
            1,
            "1 table with a problem: d/t, publish hangs for 12 min",
            id="bad",
        ),
        pytest.param(
            lambda: (TableView("s3://l/a", None, ()), hanging("s3://l/d/u", 9), hanging("s3://l/d/t")),
            1,
            "2 of 3 tables with a problem, the worst: d/t, publish hangs for 12 min",
            id="the worst",
        ),
        pytest.param(
            lambda: (TableView("lakewarden://partition/1", None, (), refused="why"), hanging("s3://l/d/t")),
            1,
            "1 Kafka partition refused by agents: partition/1 1 table with a problem: d/t, publish hangs",
            id="a partition",
        ),
        pytest.param(
            lambda: (TableView("s3://l/a", None, ()),),
            0,
            "No agent is in the group: nothing is admitted or granted. 1 table",
            id="no agent",
        ),
    ],
)
def test_the_head_says_in_one_sentence_how_things_are(
    found: Callable[[], tuple[TableView, ...]], members: int, said: str
) -> None:
    follower = at_work(*found(), members=members)
    around = {"known": views.known(follower), "members": follower.members, "as_of": AT}
    html = Pages(Settings()).render(views.tables(follower, {}), **around)

    headline = re.sub(r"<[^>]*>", "", " ".join(re.findall(r'<p class="headline.*?</p>', html, re.DOTALL)))
    assert said in " ".join(headline.split())


@pytest.mark.parametrize(("known", "text", "words"), INCIDENTS)
def test_each_incident_of_a_night_has_its_cause_and_a_complete_command_on_the_first_page_and_in_status(
    known: Facts, text: str, words: str
) -> None:
    """One step to the cause, and one to what to do, in a shell without settings."""
    del words
    settings = Settings(bootstrap_servers="kafka:9092", topic_prefix="night")
    judged = condition(known)
    view = TableView(known.table, None, (), condition=judged)
    rows = views.Tables([views.TableRow(view, 0, 0.0, [])], 0, "")
    shown = View("tables", "Tables", "", rows, views.Page(1, 1, "", {}))
    page = Pages(settings).render(shown, known=[view], members=(), as_of=AT)
    printed = "\n".join(lines("status", [view], table=None, command=partial(command, settings)))

    expected = [text, judged.cause or "", judged.remedy or ""]
    if judged.command:
        expected.append(command(settings, *judged.command))
    for found in (unescape(re.sub(r"<[^>]*>", "", page)), printed):
        assert [each for each in expected if each not in found] == []


def test_a_table_has_its_commits_of_the_last_hour_as_far_as_they_are_known() -> None:
    follower = at_work()
    now, timelines = 1_800_000_090.0, follower.history.timelines
    last = int(now // 120)
    for minutes in (61, 59, 30, 29.5, 1, 0.1, 0.1):
        commit = made(CommitCompleted, writer="w", grant="g")
        timelines.ends["s3://l/a"].note(commit, now - 60 * minutes)

    counts = views._pulse(follower.history, "s3://l/a", last)
    assert (len(counts), sum(each or 0 for each in counts)) == (30, 6)

    timelines.forgotten = now - 20 * 60
    counts = views._pulse(follower.history, "s3://l/a", last)
    assert sum(each or 0 for each in counts) == 3
    assert counts.index(0) == counts.count(None) == 20, "nothing is claimed of the time that may be forgotten"

    assert views._pulse(follower.history, "s3://l/b", last) == []


def test_of_a_log_whose_beginning_is_not_read_nothing_is_claimed_before_its_first_record() -> None:
    past, now = history("w").timelines, 1_800_000_000.0
    past.cut.add(3)
    common = {"table": "s3://l/a", "writer": "w", "transaction": "T", "event_id": "e", "at": AT, "grant": "g"}
    done = encode(CommitCompleted.model_validate(common))

    past.add_event(consumed(done, at_ms=round(now * 1000)))
    assert past.forgotten == 0.0, "that partition is read from its beginning"
    for later in (60, 120):
        past.add_event(consumed(done, partition=3, at_ms=round((now + later) * 1000)))
    assert past.forgotten == now + 60


def test_bars_are_as_high_as_their_share_of_the_largest() -> None:
    assert bars([None, 0, 1, 7, 14]) == "M7.5 16v-2M10.5 16v-7M13.5 16v-14"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12 ms"), (-0.5, "-500 ms"), (3.44, "3.4 s"), (750, "12 min")]
)
def test_the_time_between_two_steps_has_the_unit_that_people_read(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- the style sheet ---------------------------------------------------------------------------------------------------

STYLE = files("lakewarden.agent.web").joinpath("static", "page.css").read_text()


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * each for each in digits)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def colours() -> Iterator[tuple[str, str, str]]:
    """What is written in which colour on which, in both schemes: any ink on any paper, but a word of a kind on its own paper."""
    for scheme in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL):
        named = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", scheme))
        for ink in ("ink", "pale", "link", "bad", "warn", "good"):
            papers = {"paper", "panel", f"{ink}-paper"} & named.keys()
            yield from ((f"{ink} on {paper}", named[ink], named[paper]) for paper in papers)
    for rule, paper, ink in re.findall(
        r"^(\.pill[^{]*) \{.*background: (#\w+); color: (#\w+);", STYLE, re.MULTILINE
    ):
        yield rule, ink, paper


def test_every_text_can_be_read_in_both_schemes() -> None:
    """WCAG 2, AA: 4.5 to 1."""
    found = list(colours())

    assert len(found) > 30
    assert [each for each in found if contrast(*each[1:]) < 4.5] == []


def test_the_style_sheet_is_small_and_names_no_other_host() -> None:
    assert len(STYLE.encode()) < 20_000
    assert "url(" not in STYLE
    assert "@import" not in STYLE
