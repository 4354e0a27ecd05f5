"""What `lakewarden status` prints: first what is wrong, then each table, the worst first, with complete commands."""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime

from lakewarden.agent.clock import moment
from lakewarden.agent.operators.status import AUDIT_WINDOW, LockHolder, TableView, TransactionView
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import counted
from lakewarden.events import DEFAULT_PREFIX
from lakewarden.handlers.explain.condition import FINE, age
from lakewarden.handlers.explain.life import shown_name, writer_name
from lakewarden.handlers.lease.machine import HELD

_ID = re.compile(r"[0-9a-f]{32}")
_LONG = re.compile(r":[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?<![/\w])[0-9a-f]{32}\b")
"""The query id of a writer's name, and the id of a transaction. A table may have such a segment."""
SHORT_ID = 8
"""Digits of an id. Every command accepts the beginning of an id."""
_OF_LOCKS = ("lock", "doctor")
"""Commands that read the stores of the locks, and not only Kafka."""
_OF_STORES = (*_OF_LOCKS, "watch")
MOST_TRANSACTIONS = 20
"""Transactions of one table that are printed, unless all are requested."""


def short_id(transaction: str) -> str:
    """The beginning of an id that the gate has made, else all of it."""
    return transaction[:SHORT_ID] if _ID.fullmatch(transaction) else transaction


def short_names(text: str) -> str:
    """A sentence with the names of its writers and the beginnings of its ids."""
    return _LONG.sub(lambda found: "" if found[0].startswith(":") else short_id(found[0]), text)


def status_summary(views: Sequence[TableView]) -> str:
    """How many tables need a look, and whether agents serve them."""
    if not views:
        return "no table has an open transaction, a lock, or a commit in the last hours"
    names = [view.condition.name for view in views if view.condition is not None]
    bad, unserved = len(names) - sum(map(names.count, FINE)), names.count("no-agent")
    found = []
    if partitions := len(views) - len(names):
        found.append(f"{counted(partitions, 'Kafka partition')} with a problem")
    if names:
        found.append(f"{counted(len(names), 'table')}, {f'{bad} with a problem' if bad else 'ok'}")
    without = (
        f", {unserved} of them without an agent: nothing is admitted or granted there" if unserved else ""
    )
    return "; ".join(found) + without


def status_tree(
    view: TableView, settings: Settings, *, verbose: bool
) -> tuple[str, list[str | list[tuple[str, ...]]]]:
    """One table: a line, and what is below it."""
    found = view.condition
    if found is None:
        refused = [] if view.refused is None else [f"REFUSED by agents: {view.refused}"]
        return view.table, [*refused, *(f"LOG INCOMPLETE: {missing}" for missing in view.incomplete)]
    branches: list[str | list[tuple[str, ...]]] = []
    if found.cause is not None:
        branches += [f"cause: {found.cause}", f"remedy: {found.remedy}"]
    if found.command:
        branches.append(command(settings, *found.command))
    if view.lock is not None or view.transactions or verbose:
        branches.append(f"lock: {lock_text(view.lock)}")
    if view.last_commit is not None:
        pace = "" if view.pace_seconds is None else f"; usually one every {age(view.pace_seconds)}"
        branches.append(f"last commit: {ago(view.last_commit)} ago{pace}")
    elif verbose:
        branches.append("last commit: none in the last hours")
    if view.transactions:
        shown = view.transactions if verbose else view.transactions[:MOST_TRANSACTIONS]
        branches.append(_transactions(shown, verbose=verbose))
        if left_out := len(view.transactions) - len(shown):
            branches.append(f"… {counted(left_out, 'more transaction')}: --verbose prints them")
    elif verbose:
        branches.append("no open transaction")
    branches += [
        f"the grant of {writer_name(each.writer)} is withdrawn, its lease still runs: {each.revoked}"
        for each in view.transactions
        if each.revoked is not None
    ]
    return f"{view.table}: {found.text}", branches


def _transactions(found: Sequence[TransactionView], *, verbose: bool) -> list[tuple[str, ...]]:
    names = ("writer", "batch", "phase", "for", "waits for", "transaction")
    more = ("since", "partitions", "file groups", "runs at") if verbose else ()
    rows = [
        (
            each.writer if verbose else shown_name(each.writer),
            "" if each.batch_id is None else str(each.batch_id),
            each.phase if each.revoked is None else f"{each.phase}, withdrawn",
            ago(each.granted or each.waiting_since or each.since),
            (each.waiting_on or "") if verbose else short_names(each.waiting_on or ""),
            each.transaction if verbose else short_id(each.transaction),
            *(
                (each.since, str(each.partitions), str(each.file_groups), each.runs_at or "")
                if verbose
                else ()
            ),
        )
        for each in found
    ]
    return [(*names, *more), *rows]


def lock_text(lock: LockHolder | None) -> str:
    """Who holds the lock, and until when."""
    if lock is None:
        return f"not used in the last {AUDIT_WINDOW.total_seconds() / 60:.0f} minutes"
    if lock.held:
        return f"held by agent {lock.agent} until {lock.valid_until}{lock.note}"
    if lock.ends_with_lease:
        return f"lapsed; agent {lock.agent} held it until {lock.valid_until}{lock.note}"
    if lock.waiting:
        who = lock.owner or "an unknown owner"
        note = "" if lock.detail == HELD else lock.note
        return f"held by {who}, not by agent {lock.agent}; the lease ends at {lock.valid_until}{note}"
    return f"{lock.last_step.removeprefix('lock-')}{lock.note}"


def ago(time: str) -> str:
    """How long ago an ISO time was."""
    try:
        return age(moment().wall_ms / 1000 - datetime.fromisoformat(time).timestamp())
    except (ValueError, OverflowError):
        return time


class Command(str):
    """A command to copy. As text it is one line."""

    __slots__ = ("words",)
    words: tuple[str, ...]
    """Quoted for a shell, each option with its value."""

    def folded(self, width: int) -> list[str]:
        """Lines that a shell reads as the same command. One that has to be longer has a single word."""
        lines = [""]
        for word in self.words:
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if len(longer) + len(" \\") <= width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(f"  {word}")
        return [*(f"{each} \\" for each in lines[:-1]), lines[-1]]


def command(settings: KafkaSettings, *words: str) -> Command:
    """A command to copy, complete and quoted for a shell: it finds the same Kafka, topics and locks in a shell without settings.

    Credentials are not in it. Control characters are shown, never executed by pasting.
    """
    prefix = settings.topic_prefix
    names = [] if prefix == DEFAULT_PREFIX else [f"LAKEWARDEN_TOPIC_PREFIX={_quoted(prefix)}"]
    options: list[str] = []
    if words[0] != "lock":
        options += ["--bootstrap-servers", settings.bootstrap_servers]
    if words[0] in _OF_STORES and isinstance(settings, Settings):
        placed = "--lock" in words or words[0] == "watch" or words[:2] == ("lock", "probe")
        if settings.lock_root is not None and not placed:
            options += ["--lock-root", settings.lock_root]
        if settings.s3_endpoint is not None:
            options += ["--s3-endpoint", settings.s3_endpoint]
    parts: list[str] = []
    for word in (*names, *map(_quoted, ("lakewarden", *words, *options))):
        if parts and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    found = Command(" ".join(parts))
    found.words = tuple(parts)
    return found


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}" for each in word.replace("\\", "\\\\")
    )
    return "$'" + escaped.replace("'", "\\'") + "'"
