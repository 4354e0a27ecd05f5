"""What each view shows, as values that are printed as JSON and rendered as HTML. They come from the functions of the commands."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from urllib.parse import urlencode

from lakewarden.agent.clock import moment
from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.agents import agents as read_agents
from lakewarden.agent.operators.explain import AmbiguousError, explain
from lakewarden.agent.operators.questions import Question, cells
from lakewarden.agent.operators.shell_command import command
from lakewarden.agent.operators.status import TableView, TransactionView, rank, with_condition
from lakewarden.agent.operators.text import Visible, sentence, story
from lakewarden.agent.settings import Settings
from lakewarden.agent.time_text import last
from lakewarden.agent.web.follower import HOURS, Follower, History
from lakewarden.events import canonical_table
from lakewarden.handlers.explain.condition import FINE, head_of
from lakewarden.handlers.explain.life import LOST, writer_name
from lakewarden.handlers.writers_log import short_table

ROWS = 200
"""Rows of one page of a view. The JSON has the same rows."""
MAX_PAGE = 1_000
DEFAULT_MINUTES = 15
"""Minutes of a table's timeline."""
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
    data: dict[str, Any]
    live: bool = True
    """Whether it changes while it is shown."""
    links: dict[str, str] = field(default_factory=dict)
    """Path and query of the next and the previous page."""


SORTS: dict[str, Callable[[TableView, dict[str, dict[str, Any]]], Any]] = {
    "table": lambda each, _: each.table,
    "open": lambda each, _: -len(each.transactions),
    "waiting": lambda each, _: -_waiting(each),
    "commit": lambda each, _: each.last_commit or "",
    "pace": lambda each, _: each.pace_seconds or 0.0,
    "conflicts": lambda each, lost: -lost.get(each.table, {"conflicts": 0})["conflicts"],
}
"""Orders of the tables, by the name of a column. Without one: the worst first."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the views come from."""

    settings: Settings
    follower: Follower
    history: History

    @property
    def problem(self) -> str | None:
        return self.follower.problem or self.history.problem


def health(sources: Sources) -> dict[str, int | None]:
    """What holds of the whole installation: the tiles of every page."""
    members, known = sources.follower.members, _known(sources)
    return {
        "agents": None if members is None else len(members),
        "kafka": sources.follower.problem is None,
        "tables": len(known),
        "bad": sum(each.condition is None or each.condition.name not in FINE for each in known),
        "waiting": sum(_waiting(each) for each in known),
    }


# -- tables, locks, waits ----------------------------------------------------------------------------------------------


def tables(sources: Sources, query: Mapping[str, str]) -> View:
    """The tables with open transactions or a lock; those in which a transaction waits come first."""
    status, views = sources.follower.status, _known(sources)
    none = {"conflicts": 0, "seconds": 0.0}
    report = sources.history.losses.report()["tables"]
    lost = {each["table"]: {name: each[name] for name in none} for each in report}
    shown = sorted(views, key=lambda each: (rank(each), -_waiting(each), -len(each.transactions), each.table))
    sort = query.get("sort", "")
    if sort in SORTS:
        shown.sort(key=lambda each: SORTS[sort](each, lost))
    rows, page = _page("/", shown, query, sort=sort)
    data = {
        "tables": [
            {**asdict(each), "waiting": _waiting(each), **lost.get(each.table, none)} for each in rows
        ],
        "sort": sort,
        "hours": HOURS,
        "contended": sum(1 for each in views if _waiting(each)),
        "locked": sum(1 for each in views if each.lock is not None and each.lock.held),
        "open": sum(len(each.transactions) for each in views),
        "without_waits": sorted(() if status is None else status.without_waits),
    }
    return _view(sources, "tables", "Tables", data, "status", page=page)


def locks(sources: Sources, query: Mapping[str, str]) -> View:
    """Who holds which lock and which grant, until when."""
    held = [each for each in _known(sources) if each.lock is not None or _granted(each)]
    held.sort(key=lambda each: (not (each.lock is not None and each.lock.held), each.table))
    rows, page = _page("/locks", held, query)
    data = {
        "locks": [
            {
                "table": each.table,
                "lock": None if each.lock is None else asdict(each.lock),
                "grants": [asdict(one) for one in _granted(each)],
            }
            for each in rows
        ]
    }
    return _view(sources, "locks", "Locks and grants", data, "status", page=page)


def waits(sources: Sources, query: Mapping[str, str]) -> View:
    """Who holds up whom: a row for each transaction that others wait for, the one with the longest wait first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for view in _known(sources):
        by_id = {each.transaction: each for each in view.transactions}
        behind = {name: [one.transaction for one in each.blockers] for name, each in by_id.items()}
        for each in view.transactions:
            if each.waiting_on is None:
                continue
            first = head_of(each.transaction, behind)
            head = None if first == each.transaction else by_id[first]
            group = groups.setdefault(
                (view.table, "" if head is None else first),
                {
                    "table": view.table,
                    "head": None if head is None else asdict(head),
                    "behind": each.waiting_on,
                    "condition": None if view.condition is None else asdict(view.condition),
                    "waiting": [],
                },
            )
            group["waiting"].append(asdict(each))
    found = list(groups.values())
    for group in found:
        group["waiting"].sort(key=lambda each: each["waiting_since"] or "")
    found.sort(key=lambda each: (each["waiting"][0]["waiting_since"] or "", each["table"]))
    rows, page = _page("/waits", found, query)
    return _view(sources, "waits", "Who holds up whom", {"waits": rows}, "status", page=page)


def writer(sources: Sources, query: Mapping[str, str]) -> View:
    """The last transactions of a writer, found by a part of its name, and by batch."""
    name, batch = query.get("name", "")[:MAX_FILTER], query.get("batch", "")
    if batch and not batch.lstrip("-").isdecimal():
        raise BadRequestError("batch is not a number; leave it out for all batches")
    found = sources.history.timelines.find(name, int(batch) if batch else None, _table_of(query))
    rows, page = _page("/writer", found, {**query, "q": ""}, name=name, batch=batch)
    committed = [each for each in found if each["outcome"] == "committed"]
    data = {
        "name": name,
        "batch": batch,
        "transactions": rows,
        "committed": len(committed),
        "lost": sum(each["outcome"] in LOST for each in found),
        "last": committed[0] if committed else None,
        "hours": HOURS,
    }
    title = writer_name(name) if name else "Writers"
    return _view(sources, "writer", title, data, "ledger", "show", *([name] if name else []), page=page)


def table(sources: Sources, query: Mapping[str, str]) -> View:
    """One table: now, and over the last minutes."""
    uri = _table_of(query, required=True) or ""
    minutes = _number(query, "minutes", DEFAULT_MINUTES, HOURS * 60)
    status = sources.follower.status
    end = moment().wall_ms / 1000
    view = _judged(sources, TableView(uri, None, ()) if status is None else status.view(uri), end)
    data = {
        "table": asdict(view),
        "without_waits": status is not None and uri in status.without_waits,
        "minutes": minutes,
        "timeline": sources.history.timelines.drawing(uri, end - minutes * 60, end),
        "losses": sources.history.losses.report(uri),
        "history_complete": sources.history.complete,
    }
    return _view(sources, "table", short_table(uri), data, "status", "--table", uri)


# -- history -----------------------------------------------------------------------------------------------------------


def losses(sources: Sources, query: Mapping[str, str]) -> View:
    """What conflicts have cost in the last hours."""
    uri, past = _table_of(query), sources.history
    words = ["losses", "--hours", str(HOURS), *(["--table", uri] if uri else [])]
    data = {**past.losses.report(uri), "table": uri, "history_complete": past.complete}
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
        "history_complete": sources.history.complete,
    }
    return _view(sources, "rows", asked.title, data, asked.name, page=page)


def refused(sources: Sources, query: Mapping[str, str]) -> View:
    """The events that agents refused, the latest first."""
    found = [{**asdict(each), "table": each.table or ""} for each in reversed(sources.history.refused)]
    rows, page = _page("/refused", found, query)
    return _view(sources, "refused", "Refused events", {"refused": rows}, "refused", page=page)


async def agents(sources: Sources, query: Mapping[str, str]) -> View:
    """The agents, and which of them has which partition."""
    del query
    found = await read_agents(sources.settings)
    return _view(sources, "agents", "Agents", asdict(found), "agents", live=False)


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
    agents = None if follower.members is None else bool(follower.members)
    ends = sources.history.timelines.ends.get(view.table)
    waits_known = follower.status is None or view.table not in follower.status.without_waits
    return with_condition(view, now, agents=agents, ends=ends, waits_known=waits_known)


def _waiting(view: TableView) -> int:
    return sum(1 for each in view.transactions if each.waiting_on is not None)


def _granted(view: TableView) -> list[TransactionView]:
    return [each for each in view.transactions if each.granted is not None]


# -- one transaction ---------------------------------------------------------------------------------------------------


async def transaction(sources: Sources, query: Mapping[str, str]) -> View:
    """One transaction's story, as `explain` prints it. Without an id: a form that asks for one."""
    prefix, uri = query.get("id", ""), _table_of(query)
    if not prefix:
        empty: dict[str, Any] = {"candidates": []}
        return _view(sources, "transaction", "One transaction", empty, "explain", "TRANSACTION", live=False)
    words = ["explain", prefix, *(["--table", uri] if uri else [])]
    try:
        found = await explain(sources.settings, prefix, uri)
    except AmbiguousError as several:
        data: dict[str, Any] = {
            "problem": str(several),
            "candidates": [
                asdict(each) | {"at": each.at.isoformat(timespec="milliseconds")}
                for each in several.candidates[-ROWS:]
            ],
        }
        return _view(sources, "transaction", "One transaction", data, *words, live=False)
    outcome, related = sentence("final_outcome", found), list(_related(found.transaction.id, found))
    data = {
        **{each.name: getattr(found, each.name) for each in fields(found)},
        "summary": outcome,
        "story": [
            {"record": each.place, "time": each.time, "what": Visible(what), "details": Visible(details)}
            for each in story(found)
            for what, _, details in [each.text.partition(": ")]
        ],
        "related": related[-ROWS:],
        "more_related": max(0, len(related) - ROWS),
    }
    who, batch = writer_name(found.transaction.writer), found.transaction.batch_id
    title = " · ".join([who, *([] if batch is None else [f"batch {batch}"]), outcome])
    return _view(sources, "transaction", title, data, *words, live=False)


def _related(this: str, found: Any) -> Iterator[dict[str, Any]]:
    """The other transactions that the story names, and the other attempts of its batch, each once."""
    seen = {this}
    for kind, group in (("named above", found.others), ("another attempt", found.attempts)):
        for each in group:
            if each.transaction.id not in seen:
                seen.add(each.transaction.id)
                yield {
                    "transaction": each.transaction.id,
                    "writer": each.transaction.writer,
                    "outcome": sentence("phase_text", each.outcome),
                    "why": kind,
                }


# -- pages and parameters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Page:
    data: dict[str, Any]
    links: dict[str, str]


def _view(
    sources: Sources,
    name: str,
    title: str,
    data: dict[str, Any],
    *words: str,
    page: _Page | None = None,
    live: bool = True,
) -> View:
    """A view, with what its page adds. `words`: the command that prints the same."""
    shown = page or _Page({}, {})
    return View(name, title, command(sources.settings, *words), data | shown.data, live, shown.links)


def _page(path: str, found: list[Any], query: Mapping[str, str], **more: str) -> tuple[list[Any], _Page]:
    text = query.get("q", "")[:MAX_FILTER]
    if text:
        found = [each for each in found if text in (each["table"] if isinstance(each, dict) else each.table)]
    number = _number(query, "page", 1, MAX_PAGE)
    first = (number - 1) * ROWS
    links = {}
    if number > 1:
        links["previous"] = address(path, q=text, page=str(number - 1), **more)
    if first + ROWS < len(found):
        links["next"] = address(path, q=text, page=str(number + 1), **more)
    data = {"count": len(found), "first": first + 1, "q": text}
    return found[first : first + ROWS], _Page(data, links)


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    try:
        return min(most, max(1, int(query.get(name, default))))
    except ValueError:
        raise BadRequestError(f"{name} is not a number; leave it out for {default}") from None


def address(path: str, **parameters: str | None) -> str:
    """Path and query. Names are percent-encoded, and what is empty is left out."""
    text = urlencode({name: value for name, value in parameters.items() if value})
    return f"{path}?{text}" if text else path


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
