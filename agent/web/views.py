"""What each view of the page shows: values of the functions of the commands. Their JSON is their fields, as there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, TypeVar
from urllib.parse import urlencode

from lakewarden.agent.clock import moment
from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.agents import agents as read_agents
from lakewarden.agent.operators.explain import AmbiguousError, Candidate, explain
from lakewarden.agent.operators.past import LossReport, LossRow, RefusedEvent
from lakewarden.agent.operators.questions import Question, Row
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import (
    LockHolder,
    TableView,
    TransactionView,
    rank,
    with_condition,
    with_conditions,
)
from lakewarden.agent.operators.text import StoryLine, sentence, story
from lakewarden.agent.time_text import last
from lakewarden.agent.web.follower import HOURS, Follower, History
from lakewarden.events import canonical_table
from lakewarden.handlers.explain.bars import Drawing, drawing
from lakewarden.handlers.explain.condition import Condition, head_of
from lakewarden.handlers.explain.life import LOST, End, Ends, Life, writer_name
from lakewarden.handlers.explain.timeline import Explanation
from lakewarden.handlers.writers_log import short_table

ROWS = 200
"""Rows of one page of a view. The JSON has the same rows."""
MAX_PAGE = 1_000
DEFAULT_MINUTES = 15
"""Minutes of a table's timeline."""
PULSE_MINUTES, PULSES = 2, 30
"""A table's commits of the last hour are shown by so many minutes."""
MAX_FILTER = 1_024
"""Characters of a filter: the length limit of a table's URI."""

Query: TypeAlias = Mapping[str, str]


class BadRequestError(AgentError):
    """The request names something that doesn't exist. The message says what to request instead."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which rows of a view are shown."""

    count: int
    """All rows."""
    first: int
    """Number of the first one."""
    q: str
    """What the names of their tables contain."""
    links: dict[str, str]
    """Path and query of the `next` and the `previous` page."""


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    """Name of its template and its path."""
    title: str
    command: str
    """The command that prints the same."""
    data: object
    """A dataclass: what the template shows, and the JSON has."""
    page: Page | None = None
    live: bool = True
    """Whether it changes while it is shown."""
    problem: str | None = None
    """Why it can't answer."""


class _OfTable(Protocol):
    """What is listed."""

    @property
    def table(self) -> str | None: ...


_Listed = TypeVar("_Listed", bound=_OfTable)


# -- tables, locks, waits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table in the list, with what conflicts have cost it."""

    view: TableView = field(metadata={"flat": True})
    conflicts: int
    seconds: float
    pulse: list[int | None]
    """Commits in each part of the last hour. None: not known."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The list of tables."""

    tables: list[TableRow]
    pulse_end: int
    """When the last part of the hour ends, in epoch seconds."""
    sort: str


SORTS: dict[str, Callable[[TableView, int], float | str]] = {
    "table": lambda each, _: each.table,
    "open": lambda each, _: -len(each.transactions),
    "waiting": lambda each, _: -waiting(each),
    "commit": lambda each, _: each.last_commit or "",
    "pace": lambda each, _: each.pace_seconds or 0.0,
    "conflicts": lambda _, conflicts: -conflicts,
}
"""Orders of the tables, by the name of a column, with the number of their conflicts. Without one: the worst first."""


def tables(follower: Follower, query: Query) -> View:
    """The tables with open transactions, a lock or a commit, those with a problem first."""
    lost = {each.table: each for each in follower.history.losses.report().tables}
    sort = query.get("sort", "")
    shown = sorted(
        known(follower), key=lambda each: (rank(each), -waiting(each), -len(each.transactions), each.table)
    )
    if sort in SORTS:
        conflicts = {uri: each.conflicts for uri, each in lost.items()}
        shown.sort(key=lambda each: SORTS[sort](each, conflicts.get(each.table, 0)))
    shown, page = _page("/", shown, query, sort=sort)
    last_part = moment().wall_ms // 60_000 // PULSE_MINUTES
    rows = []
    for each in shown:
        loss = lost.get(each.table, LossRow(each.table, 0, 0.0))
        rows.append(
            TableRow(each, loss.conflicts, loss.seconds, _pulse(follower.history, each.table, last_part))
        )
    pulse_end = (last_part + 1) * PULSE_MINUTES * 60
    return _view(follower, "tables", "Tables", Tables(rows, pulse_end, sort), "status", page=page)


@dataclass(frozen=True, slots=True)
class LockRow:
    """The lock of a table, and the grants under it."""

    table: str
    lock: LockHolder | None
    grants: list[TransactionView]


@dataclass(frozen=True, slots=True)
class Locks:
    """Who holds which lock and which grant, until when."""

    locks: list[LockRow]


def locks(follower: Follower, query: Query) -> View:
    """The locks and the grants, those that are held first."""
    found = []
    for each in known(follower):
        granted = [one for one in each.transactions if one.granted is not None]
        if each.lock is not None or granted:
            found.append(LockRow(each.table, each.lock, granted))
    found.sort(key=lambda each: (not (each.lock is not None and each.lock.held), each.table))
    rows, page = _page("/locks", found, query)
    return _view(follower, "locks", "Locks and grants", Locks(rows), "status", page=page)


@dataclass(frozen=True, slots=True)
class Held:
    """A transaction that others wait for, and those others."""

    table: str
    head: TransactionView | None
    """None: they wait for the table's lock, or for an agent."""
    behind: str
    condition: Condition | None
    waiting: list[TransactionView]


@dataclass(frozen=True, slots=True)
class Waits:
    """A row for each transaction that others wait for."""

    waits: list[Held]


def waits(follower: Follower, query: Query) -> View:
    """Who holds up whom, the one with the longest wait first."""
    groups: dict[tuple[str, str], Held] = {}
    for view in known(follower):
        by_id = {each.transaction: each for each in view.transactions}
        behind = {name: [one.transaction for one in each.blockers] for name, each in by_id.items()}
        for each in sorted(view.transactions, key=lambda each: each.waiting_since or ""):
            if each.waiting_on is None:
                continue
            first = head_of(each.transaction, behind)
            head = None if first == each.transaction else by_id[first]
            group = Held(view.table, head, each.waiting_on, view.condition, [])
            groups.setdefault((view.table, first if head else ""), group).waiting.append(each)
    found = sorted(groups.values(), key=lambda each: (each.waiting[0].waiting_since or "", each.table))
    rows, page = _page("/waits", found, query)
    return _view(follower, "waits", "Who holds up whom", Waits(rows), "status", page=page)


@dataclass(frozen=True, slots=True)
class Writer:
    """The last transactions of a writer."""

    name: str
    batch: str
    transactions: list[Life]
    committed: int
    lost: int
    last: Life | None
    """Its last committed one."""


def writer(follower: Follower, query: Query) -> View:
    """The last transactions of a writer, found by a part of its name, and by batch."""
    name, batch = query.get("name", "")[:MAX_FILTER], query.get("batch", "")
    if batch and not batch.lstrip("-").isdecimal():
        raise BadRequestError("batch is not a number; leave it out for all batches")
    number = int(batch) if batch else None
    found = follower.history.timelines.find(name, number, _table_of(query))
    rows, page = _page("/writer", found, {**query, "q": ""}, name=name, batch=batch)
    committed = [each for each in found if each.end is End.COMMITTED]
    lost, last_one = sum(each.end in LOST for each in found), next(iter(committed), None)
    data = Writer(name, batch, rows, len(committed), lost, last_one)
    words = ("ledger", "show", *filter(None, [name]))
    return _view(follower, "writer", writer_name(name) or "Writers", data, *words, page=page)


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    table: TableView
    minutes: int
    timeline: Drawing
    losses: LossReport


def table(follower: Follower, query: Query) -> View:
    """One table: now, and over the last minutes."""
    uri = _table_of(query, "uri")
    if uri is None:
        raise BadRequestError("the table is missing; add ?uri=…")
    minutes = _number(query, "minutes", DEFAULT_MINUTES, HOURS * 60)
    past, end = follower.history, moment().wall_ms / 1000
    view = follower.status.view(uri) if follower.status else TableView(uri, None, ())
    data = Table(
        with_condition(view, end, follower.members, past.timelines.ends.get(uri, Ends())),
        minutes,
        drawing(past.timelines.tables.get(uri, {}).values(), end - minutes * 60, end),
        past.losses.report(uri),
    )
    return _view(follower, "table", short_table(uri), data, "status", "--table", uri)


# -- history -----------------------------------------------------------------------------------------------------------


def losses(follower: Follower, query: Query) -> View:
    """What conflicts have cost in the last hours."""
    uri = _table_of(query)
    title, found = f"Lost to conflicts in {last(HOURS, 'hour')}", follower.history.losses.report(uri)
    return _view(follower, "losses", title, found, "losses", "--hours", str(HOURS), *_of_table(uri))


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, and its rows."""

    question: str
    text: str
    none: str
    rows: list[Row]


def question(asked: Question, follower: Follower, query: Query) -> View:
    """The answer to a question about what is past."""
    rows, page = _page(f"/{asked.name}", asked.answer(follower.history.timelines), query)
    data = Answer(asked.name, asked.text, asked.none, rows)
    return _view(follower, "rows", asked.title, data, asked.name, page=page)


@dataclass(frozen=True, slots=True)
class Refused:
    """Refused events."""

    refused: list[RefusedEvent]


def refused(follower: Follower, query: Query) -> View:
    """The events that agents refused, the latest first."""
    rows, page = _page("/refused", list(reversed(follower.history.refused)), query)
    return _view(follower, "refused", "Refused events", Refused(rows), "refused", page=page)


async def agents(follower: Follower, query: Query) -> View:
    """The agents, and which of them has which partition."""
    del query
    return _view(follower, "agents", "Agents", await read_agents(follower.settings), "agents", live=False)


# -- parts of them -----------------------------------------------------------------------------------------------------


def known(follower: Follower) -> list[TableView]:
    """The tables with their conditions, those without anything open included. They are judged once a second."""
    if follower.status is None:
        return []
    as_of = follower.changes.revision, moment().wall_ms // 1000
    if follower.judged[0] != as_of:
        follower.judged = (
            as_of,
            with_conditions(follower.status.views(), follower.history.timelines.ends, follower.members),
        )
    return follower.judged[1]


def waiting(view: TableView) -> int:
    """How many of its transactions wait for an admission or a grant."""
    return 0 if view.condition is None else view.condition.waiting


def _pulse(history: History, table: str, last: int) -> list[int | None]:
    """Commits in each of the parts of an hour up to this one, in order. None: not known, as they may be forgotten."""
    ends = history.timelines.ends.get(table)
    if ends is None:
        return []
    first = [part * PULSE_MINUTES for part in range(last - PULSES + 1, last + 1)]
    forgotten = history.timelines.forgotten / 60
    return [None if minute <= forgotten else ends.commits_of(minute, PULSE_MINUTES) for minute in first]


# -- one transaction ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidates:
    """The transactions whose ids begin so. Empty: none was asked for."""

    candidates: list[Candidate]


@dataclass(frozen=True, slots=True)
class Story:
    """One transaction's story, as `explain` prints it."""

    explanation: Explanation = field(metadata={"flat": True})
    summary: str
    story: list[StoryLine]


async def transaction(follower: Follower, query: Query) -> View:
    """One transaction's story. Without an id: a form that asks for one."""
    prefix, uri = query.get("id", ""), _table_of(query)
    words = ("explain", prefix or "TRANSACTION", *_of_table(uri))
    form = _view(follower, "transaction", "One transaction", Candidates([]), *words, live=False)
    if not prefix:
        return form
    try:
        found = await explain(follower.settings, prefix, uri)
    except AmbiguousError as several:
        return replace(form, data=Candidates(several.candidates[-ROWS:]), problem=str(several))
    outcome = sentence("final_outcome", found)
    title = [writer_name(found.transaction.writer), outcome]
    if found.transaction.batch_id is not None:
        title.insert(1, f"batch {found.transaction.batch_id}")
    return replace(form, title=" · ".join(title), data=Story(found, outcome, story(found)))


# -- pages and parameters ----------------------------------------------------------------------------------------------


def _view(
    follower: Follower,
    name: str,
    title: str,
    data: object,
    *words: str,
    page: Page | None = None,
    live: bool = True,
) -> View:
    """A view. `words`: the command that prints the same."""
    return View(name, title, command(follower.settings, *words), data, page, live)


def _page(path: str, found: list[_Listed], query: Query, **more: str) -> tuple[list[_Listed], Page]:
    """The rows of the page that is asked for, and which they are."""
    text = query.get("q", "")[:MAX_FILTER]
    if text:
        found = [each for each in found if text in (each.table or "")]
    number = _number(query, "page", 1, MAX_PAGE)
    first = (number - 1) * ROWS
    links = {}
    if number > 1:
        links["previous"] = address(path, q=text, page=str(number - 1), **more)
    if first + ROWS < len(found):
        links["next"] = address(path, q=text, page=str(number + 1), **more)
    return found[first : first + ROWS], Page(len(found), first + 1, text, links)


def _number(query: Query, name: str, default: int, most: int) -> int:
    try:
        return min(most, max(1, int(query.get(name, default))))
    except ValueError:
        raise BadRequestError(f"{name} is not a number; leave it out for {default}") from None


def address(path: str, **parameters: str | None) -> str:
    """Path and query. Names are percent-encoded, and what is empty is left out."""
    text = urlencode({name: value for name, value in parameters.items() if value})
    return f"{path}?{text}" if text else path


def _of_table(uri: str | None) -> tuple[str, ...]:
    return () if uri is None else ("--table", uri)


def _table_of(query: Query, name: str = "table") -> str | None:
    uri = query.get(name, "")
    try:
        return canonical_table(uri) if uri else None
    except ValueError as error:
        raise BadRequestError(f"{error}; name the table as its events do") from None
