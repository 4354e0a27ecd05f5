"""Reads a table's own history for `lakewarden assess`: commits, rollbacks, and data files that no commit names.

`handlers/assessment.py` has the rules of the figures, `reading.py` those of reading. Each format's file reads its commits.
"""

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import delta, hudi, iceberg, paimon
from lakewarden.agent.watching.catalog import TableName
from lakewarden.agent.watching.files import Buckets, UnreadableTableError
from lakewarden.agent.watching.formats import KnownFormat, known_format
from lakewarden.agent.watching.leftovers import look_for_files
from lakewarden.agent.watching.reading import Progress, Reading
from lakewarden.handlers.assessment import Lack, TableHistory, joined
from lakewarden.handlers.unreadable import Unreadable


def _silent(_: str) -> None:
    pass


async def past(
    table: str, settings: Settings, *, days: float, now: float | None = None, progress: Progress = _silent
) -> TableHistory:
    """Read the history of a table, a URI or `catalog:namespace.table`, of so many days before its newest commit.

    Raises `UnreadableTableError` if it can't be read at all.
    """
    reading = Reading(days * 86_400, wall_ms() / 1000 if now is None else now, progress)
    try:
        return await _past(table, settings, reading)
    except (AgentError, Unreadable) as error:
        raise UnreadableTableError(f"{table} can't be assessed: {error}") from error


async def _past(table: str, settings: Settings, reading: Reading) -> TableHistory:
    buckets, name = Buckets(settings), TableName.of(table)
    if name is not None:
        known = KnownFormat("iceberg")
        metadata, files = await iceberg.named_metadata(name, settings, buckets)
        await iceberg.read_past(files, reading, metadata)
    else:
        files = buckets.table(table)
        known = await known_format(files, settings.formats.get(table))
        match known.form:
            case "delta":
                await delta.read_past(files, reading)
            case "paimon":
                await paimon.read_past(files, reading)
            case "hudi":
                await hudi.read_past(files, reading)
            case _:
                await iceberg.read_past(files, reading, await iceberg.newest_metadata(files, reading))
    for each in known.others:
        reading.lacks(f"the table's commits in {each}", f"{known.form} is read", Lack.NAMES)
    reading.put_in_order()
    leftovers = None if known.form == "hudi" else await look_for_files(files, known.form, reading)
    reading.check_starts()
    commits = joined(reading.commits)
    return TableHistory(
        table, known.form, commits, reading.lost, leftovers, reading.now, reading.unread, known.translations
    )
