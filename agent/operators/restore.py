"""`lakewarden ledger restore`: a backup of the ledger, which `lakewarden ledger show --output json` has printed, is stated again.

Each writer of the backup gets a correction of its own (`requests.correct`), in the order of the file. The first one that fails
ends the command. Those before it are recorded, and while the writers are stopped, to repeat the command changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.ledger import LedgerLine
from lakewarden.agent.operators.requests import Requester, correct
from lakewarden.agent.settings import KafkaSettings


class BackupLine(BaseModel):
    """What a backup must have of a writer. A writer without a batch id has only lost conflicts."""

    table: str
    writer: str
    batch_id: int | None


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
    settings: KafkaSettings, lines: Sequence[BackupLine], requester: Requester
) -> AsyncGenerator[tuple[LedgerLine | None, LedgerLine]]:
    """Yield for each writer what the ledger had, and what it has now. Close the generator (`aclosing`)."""
    for number, line in enumerate(lines):
        try:
            yield await correct(settings, line.table, line.writer, line.batch_id, requester)
        except AgentError as error:
            raise AgentError(
                f"{number} of {len(lines)} writers are restored, then: {error}; run the command again"
            ) from error
