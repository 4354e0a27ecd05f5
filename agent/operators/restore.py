"""`lakewarden ledger restore`: a backup of the ledger, which `lakewarden ledger show --output json` has printed, is stated again.

Each writer of the backup gets a correction of its own. All are published by one producer, and one reader waits for their entries.
If one isn't recorded in time, the command ends; while the writers are stopped, to repeat it changes nothing. An entry of the
ledger is never lowered unless the operator says so.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError

from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.ledger import LedgerLine, ledger
from lakewarden.agent.operators.requests import Requester, correct_all
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import canonical_table
from lakewarden.events.base import Integer, Name


class BackupLine(BaseModel):
    """What a backup must have of a writer. A writer without a batch id has only lost conflicts."""

    table: Annotated[str, AfterValidator(canonical_table)]
    writer: Name
    batch_id: Integer | None
    edition: Name | None = None


_BACKUP = TypeAdapter(list[BackupLine])


def read_backup(path: Path, table: str | None) -> list[BackupLine]:
    """Return the writers that have a batch, of one table or of all. A backup without any is an error."""
    try:
        lines = _BACKUP.validate_json(path.read_bytes())
    except OSError as error:
        raise AgentError(f"the backup {path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise AgentError(
            f"{path} is not a backup of the ledger, as lakewarden ledger show --output json prints it: "
            f"{f'{where}: ' if where else ''}{first['msg']}; nothing was restored"
        ) from error
    found = [each for each in lines if each.batch_id is not None and table in (None, each.table)]
    if not found:
        of_table = f" of table {table}" if table else ""
        raise AgentError(f"the backup {path} has no committed batch{of_table}; nothing was restored")
    return found


async def restore(
    settings: KafkaSettings, lines: Sequence[BackupLine], requester: Requester, *, lower: bool = False
) -> AsyncGenerator[tuple[LedgerLine | None, LedgerLine]]:
    """Yield for each writer what the ledger had, and what it has now. Close the generator (`aclosing`).

    `lower`: also where the ledger has a later batch than the backup. Without it, that is an error before anything is restored.
    """
    known = {(each.table, each.writer): each for each in await ledger(settings)}
    stated = {(each.table, each.writer): (each.batch_id, each.edition) for each in lines}
    lowered = [
        f"writer {writer}, table {table}: batch {had} instead of {batch_id}"
        for (table, writer), (batch_id, _) in stated.items()
        if (before := known.get((table, writer))) is not None
        and (had := before.batch_id) is not None
        and batch_id is not None
        and had > batch_id
    ]
    if lowered and not lower:
        raise AgentError(
            f"the ledger has later batches than the backup of {len(lowered)} writers, for example {lowered[0]}; their batches "
            "would be written again; give --lower if the table was also restored from that time; nothing was restored"
        )
    number = 0
    everything = [(*key, *last) for key, last in stated.items()]
    try:
        async with aclosing(correct_all(settings, everything, requester)) as recorded:
            async for after in recorded:
                yield known.get((after.table, after.writer)), after
                number += 1
    except AgentError as error:
        raise AgentError(
            f"{number} of {len(everything)} writers are restored, then: {error}; run the command again"
        ) from error
