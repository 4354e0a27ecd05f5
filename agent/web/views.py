"""What each view shows, as values that are printed as JSON and rendered as HTML. They come from the functions of the commands."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from lakewarden.agent.clock import moment
from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.agents import agents as read_agents
from lakewarden.agent.operators.as_json import named
from lakewarden.agent.operators.explain import AmbiguousError, explain
from lakewarden.agent.operators.losses import LossRow
from lakewarden.agent.operators.questions import Question, cells
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import LockHolder, TableView, TransactionView, rank, with_condition
from lakewarden.agent.operators.text import Visible, sentence, story
from lakewarden.agent.settings import Settings
from lakewarden.agent.time_text import last
from lakewarden.agent.web.follower import HOURS, Follower, History
from lakewarden.events import canonical_table
from lakewarden.handlers.explain.bars import drawing
from lakewarden.handlers.explain.condition import FINE, Condition, head_of
from lakewarden.handlers.explain.life import LOST, End, Ends, writer_name
from lakewarden.handlers.explain.timeline import Explanation
from lakewarden.handlers.writers_log import short_table

_Row = TypeVar("_Row")
ROWS = 200
"""Rows of one page of a view. The JSON has the same rows."""
MAX_PAGE = 1_000
DEFAULT_MINUTES = 15
"""Minutes of a table's timeline."""
PULSE_MINUTES, PULSES = 2, 30
"""A table's commits of the last hour are shown by so many minutes."""
MAX_FILTER = 1_024
"""Characters of a filter: the length limit of a table's URI."""


class BadRequestError(AgentError):
    """The request names something that doesn't exist. The message says what to request instead."""


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    """Name of its template and its path."""
    title: str
    command: str
    """The command that prints the same."""
    data: Mapping[str, object]
    """Typed values, by their names in the JSON and in the template."""
    links: dict[str, str] = field(default_factory=dict)
    """Path and query of the next and the previous page."""
    live: bool = True
    """Whether it changes while it is shown."""
    problem: str | None = None
    """Why it can't answer."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the views come from."""

    settings: Settings
    follower: Follower

    @property
    def history(self) -> History:
        return self.follower.history


@dataclass(frozen=True, slots=True)
class Health:
    """What holds of the whole installation: the head of every page."""

    agents: int | None
    kafka: bool
    tables: int
    bad: int
    worst: TableView | None
    partitions: list[str]
    """Kafka partitions that agents refuse."""
    waiting: int


def health(sources: Sources) -> Health:
    """What the head of every page shows."""
    members, known = sources.follower.members, _known(sources)
    judged = [each for each in known if each.condition is not None]
    names = [each.condition.name for each in known if each.condition is not None]
    return Health(
        None if members is None else len(members),
        sources.follower.problem is None,
        len(judged),
        sum(name not in FINE for name in names),
        min(judged, key=rank, default=None),
        [each.table for each in known if each.condition is None],
        sum(_waiting(each) for each in known),
    )


# -- tables, locks, waits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow(TableView):
    """A table in the list, with what conflicts have cost it."""

    waiting: int
    conflicts: int
    seconds: float


SORTS: dict[str, Callable[[TableRow], Any]] = {
    "table": lambda each: each.table,
    "open": lambda each: -len(each.transactions),
    "waiting": lambda each: -each.waiting,
    "commit": lambda each: each.last_commit or "",
    "pace": lambda each: each.pace_seconds or 0.0,
    "conflicts": lambda each: -each.conflicts,
}
"""Orders of the tables, by the name of a column. Without one: the worst first."""


def tables(sources: Sources, query: Mapping[str, str]) -> View:
    """The tables with open transactions or a lock; those in which a transaction waits come first."""
    status = sources.follower.status
    lost = {each.table: each for each in sources.history.losses.report().tables}
    shown = []
    for each in _known(sources):
        loss = lost.get(each.table, LossRow(each.table, 0, 0.0))
        shown.append(
            TableRow(**named(each), waiting=_waiting(each), conflicts=loss.conflicts, seconds=loss.seconds)
        )
    shown.sort(key=lambda each: (rank(each), -each.waiting, -len(each.transactions), each.table))
    sort = query.get("sort", "")
    if sort in SORTS:
        shown.sort(key=SORTS[sort])
    rows, page = _page("/", shown, query, sort=sort)
    last_part = moment().wall_ms // 60_000 // PULSE_MINUTES
    data = {
        "tables": rows,
        "pulses": {each.table: _pulse(sources.history, each.table, last_part) for each in rows},
        "pulse_end": (last_part + 1) * PULSE_MINUTES * 60,
        "sort": sort,
        "hours": HOURS,
        "contended": sum(each.waiting > 0 for each in shown),
        "locked": sum(each.lock is not None and each.lock.held for each in shown),
        "open": sum(len(each.transactions) for each in shown),
        "without_waits": sorted(() if status is None else status.without_waits),
    }
    return _view(sources, "tables", "Tables", data, "status", page=page)


@dataclass(frozen=True, slots=True)
class LockRow:
    """The lock of a table, and the grants under it."""

    table: str
    lock: LockHolder | None
    grants: list[TransactionView]


def locks(sources: Sources, query: Mapping[str, str]) -> View:
    """Who holds which lock and which grant, until when."""
    found = []
    for each in _known(sources):
        granted = [one for one in each.transactions if one.granted is not None]
        if each.lock is not None or granted:
            found.append(LockRow(each.table, each.lock, granted))
    found.sort(key=lambda each: (not (each.lock is not None and each.lock.held), each.table))
    rows, page = _page("/locks", found, query)
    return _view(sources, "locks", "Locks and grants", {"locks": rows}, "status", page=page)


@dataclass(frozen=True, slots=True)
class Held:
    """A transaction that others wait for, and those others."""

    table: str
    head: TransactionView | None
    """None: they wait for the table's lock, or for an agent."""
    behind: str
    condition: Condition | None
    waiting: list[TransactionView]


def waits(sources: Sources, query: Mapping[str, str]) -> View:
    """Who holds up whom: a row for each transaction that others wait for, the one with the longest wait first."""
    groups: dict[tuple[str, str], Held] = {}
    for view in _known(sources):
        by_id = {each.transaction: each for each in view.transactions}
        behind = {name: [one.transaction for one in each.blockers] for name, each in by_id.items()}
        for each in sorted(view.transactions, key=lambda each: each.waiting_since or ""):
            if each.waiting_on is None:
                continue
            first = head_of(each.transaction, behind)
            head = None if first == each.transaction else by_id[first]
            key = view.table, first if head else ""
            group = groups.setdefault(key, Held(view.table, head, each.waiting_on, view.condition, []))
            group.waiting.append(each)
    found = sorted(groups.values(), key=lambda each: (each.waiting[0].waiting_since or "", each.table))
    rows, page = _page("/waits", found, query)
    return _view(sources, "waits", "Who holds up whom", {"waits": rows}, "status", page=page)


def writer(sources: Sources, query: Mapping[str, str]) -> View:
    """The last transactions of a writer, found by a part of its name, and by batch."""
    name, batch = query.get("name", "")[:MAX_FILTER], query.get("batch", "")
    if batch and not batch.lstrip("-").isdecimal():
        raise BadRequestError("batch is not a number; leave it out for all batches")
    found = sources.history.timelines.find(name, int(batch) if batch else None, _table_of(query))
    rows, page = _page("/writer", found, {**query, "q": ""}, name=name, batch=batch)
    committed = [each for each in found if each.end is End.COMMITTED]
    data = {
        "name": name,
        "batch": batch,
        "transactions": rows,
        "committed": len(committed),
        "lost": sum(each.end in LOST for each in found),
        "last": next(iter(committed), None),
        "hours": HOURS,
    }
    title = writer_name(name) or "Writers"
    return _view(sources, "writer", title, data, "ledger", "show", *filter(None, [name]), page=page)


def table(sources: Sources, query: Mapping[str, str]) -> View:
    """One table: now, and over the last minutes."""
    uri = _table_of(query, required=True) or ""
    minutes = _number(query, "minutes", DEFAULT_MINUTES, HOURS * 60)
    status, past = sources.follower.status, sources.history
    end = moment().wall_ms / 1000
    data = {
        "table": _judged(sources, TableView(uri, None, ()) if status is None else status.view(uri), end),
        "without_waits": status is not None and uri in status.without_waits,
        "minutes": minutes,
        "timeline": drawing(past.timelines.tables.get(uri, {}).values(), end - minutes * 60, end),
        "losses": past.losses.report(uri),
        "history_complete": status is not None,
    }
    return _view(sources, "table", short_table(uri), data, "status", "--table", uri)


# -- history -----------------------------------------------------------------------------------------------------------


def losses(sources: Sources, query: Mapping[str, str]) -> View:
    """What conflicts have cost in the last hours."""
    uri, past = _table_of(query), sources.history
    words = ["losses", "--hours", str(HOURS), *_of_table(uri)]
    data = named(past.losses.report(uri)) | {
        "table": uri,
        "history_complete": sources.follower.status is not None,
    }
    return _view(sources, "losses", f"Lost to conflicts in {last(HOURS, 'hour')}", data, *words)


def question(asked: Question, sources: Sources, query: Mapping[str, str]) -> View:
    """The answer to a question about what is past."""
    rows, page = _page(f"/{asked.name}", asked.answer(sources.history.timelines), query)
    columns, *shown = cells(rows)
    data = {
        "question": asked.name,
        "text": asked.text,
        "none": asked.none,
        "columns": columns,
        "rows": [dict(zip(columns, each, strict=True)) for each in shown],
        "history_complete": sources.follower.status is not None,
    }
    return _view(sources, "rows", asked.title, data, asked.name, page=page)


def refused(sources: Sources, query: Mapping[str, str]) -> View:
    """The events that agents refused, the latest first."""
    found = [replace(each, table=each.table or "") for each in reversed(sources.history.refused)]
    rows, page = _page("/refused", found, query)
    return _view(sources, "refused", "Refused events", {"refused": rows}, "refused", page=page)


async def agents(sources: Sources, query: Mapping[str, str]) -> View:
    """The agents, and which of them has which partition."""
    del query
    return _view(
        sources, "agents", "Agents", named(await read_agents(sources.settings)), "agents", live=False
    )


# -- parts of them -----------------------------------------------------------------------------------------------------


def _known(sources: Sources) -> list[TableView]:
    """The tables with their conditions, those without anything open included."""
    status, ends = sources.follower.status, sources.history.timelines.ends
    if status is None:
        return []
    found = status.views()
    quiet = [TableView(uri, None, ()) for uri in sorted(ends.keys() - {each.table for each in found})]
    now = moment().wall_ms / 1000
    return [_judged(sources, each, now) for each in [*found, *quiet]]


def _judged(sources: Sources, view: TableView, now: float) -> TableView:
    follower = sources.follower
    ends = sources.history.timelines.ends.get(view.table, Ends())
    waits_known = follower.status is None or view.table not in follower.status.without_waits
    return with_condition(view, now, follower.members, ends, waits_known=waits_known)


def _pulse(history: History, table: str, last: int) -> list[int | None]:
    """Commits in each of the parts of an hour up to this one, in order. None: not known, as they may be forgotten."""
    ends = history.timelines.ends.get(table)
    if ends is None:
        return []
    first = [part * PULSE_MINUTES for part in range(last - PULSES + 1, last + 1)]
    forgotten = history.timelines.forgotten / 60
    return [None if minute <= forgotten else ends.commits_of(minute, PULSE_MINUTES) for minute in first]


def _waiting(view: TableView) -> int:
    return sum(1 for each in view.transactions if each.waiting_on is not None)


# -- one transaction ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoryStep:
    """A step of a transaction's history, in sentences."""

    record: str
    time: str
    type: str
    """The event's."""
    after: float | None
    """Seconds since the step before."""
    what: str
    details: str


@dataclass(frozen=True, slots=True)
class Related:
    """Another transaction of the history, or another attempt of the batch."""

    transaction: str
    writer: str
    outcome: str
    why: str


async def transaction(sources: Sources, query: Mapping[str, str]) -> View:
    """One transaction's story, as `explain` prints it. Without an id: a form that asks for one."""
    prefix, uri = query.get("id", ""), _table_of(query)
    words = ["explain", prefix or "TRANSACTION", *_of_table(uri)]
    show = partial(_view, sources, "transaction", live=False)
    if not prefix:
        return show("One transaction", {"candidates": []}, *words)
    try:
        found = await explain(sources.settings, prefix, uri)
    except AmbiguousError as several:
        found_more = {"candidates": several.candidates[-ROWS:]}
        return show("One transaction", found_more, *words, problem=str(several))
    outcome, related = sentence("final_outcome", found), list(_related(found))
    data = named(found) | {
        "summary": outcome,
        "story": list(_steps(found)),
        "related": related[-ROWS:],
        "more_related": max(0, len(related) - ROWS),
    }
    title = [writer_name(found.transaction.writer), outcome]
    if found.transaction.batch_id is not None:
        title.insert(1, f"batch {found.transaction.batch_id}")
    return show(" · ".join(title), data, *words)


def _steps(found: Explanation) -> Iterator[StoryStep]:
    """The steps, each with the seconds since the one before."""
    before: float | None = None
    for each in story(found):
        what, _, details = each.text.partition(": ")
        after = None if before is None or each.at_ms is None else (each.at_ms - before) / 1000
        yield StoryStep(each.place, each.time, each.type, after, Visible(what), Visible(details))
        before = each.at_ms


def _related(found: Explanation) -> Iterator[Related]:
    """The other transactions that the story names, and the other attempts of its batch, each once."""
    seen = {found.transaction.id}
    for why, group in (("named above", found.others), ("another attempt", found.attempts)):
        for each in group:
            name = each.transaction.id
            if name not in seen:
                seen.add(name)
                yield Related(name, each.transaction.writer, sentence("phase_text", each.outcome), why)


# -- pages and parameters ----------------------------------------------------------------------------------------------


class _Page(NamedTuple):
    """What a view has beside the rows of the page that is asked for."""

    data: Mapping[str, object]
    links: dict[str, str]


_WHOLE = _Page({}, {})


def _view(
    sources: Sources,
    name: str,
    title: str,
    data: Mapping[str, object],
    *words: str,
    page: _Page = _WHOLE,
    **around: Any,
) -> View:
    """A view. `words`: the command that prints the same. `around`: other fields of it."""
    return View(name, title, command(sources.settings, *words), {**data, **page.data}, page.links, **around)


def _page(path: str, found: list[_Row], query: Mapping[str, str], **more: str) -> tuple[list[_Row], _Page]:
    """The rows of the page that is asked for, and what its view has beside them."""
    text = query.get("q", "")[:MAX_FILTER]
    if text:
        found = [each for each in found if text in each.table]  # type: ignore[attr-defined]
    number = _number(query, "page", 1, MAX_PAGE)
    first = (number - 1) * ROWS
    links = {}
    if number > 1:
        links["previous"] = address(path, q=text, page=str(number - 1), **more)
    if first + ROWS < len(found):
        links["next"] = address(path, q=text, page=str(number + 1), **more)
    return found[first : first + ROWS], _Page({"count": len(found), "first": first + 1, "q": text}, links)


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
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


def _table_of(query: Mapping[str, str], *, required: bool = False) -> str | None:
    uri = query.get("uri" if required else "table", "")
    if not uri:
        if required:
            raise BadRequestError("the table is missing; add ?uri=…")
        return None
    try:
        return canonical_table(uri)
    except ValueError as error:
        raise BadRequestError(f"{error}; name the table as its events do") from None
