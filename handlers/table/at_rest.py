"""Whether the ledger of a topic prefix has all that another prefix needs (docs/decisions/0029).

That is so if nothing follows from the log any more:

1. The committed checkpoint of each partition is the end of `writers`. A checkpoint never passes the intent of an open
   transaction, of a commit that an open one may conflict with, or of an ended one that may still be reported. And it is
   committed only after everything that was decided before is in the log. So no transaction is open or in doubt, no event is
   unanswered, and no batch is missing in the ledger.
2. The log is complete (`log_gaps.py`), and this version knows all of it.
3. No agent is a member of the group for this prefix, and no agent holds a lock by the audit topic.

If partitions were added to the topics by mistake, no agent may decide about what was published since, because tables
have moved between partitions. So no checkpoint will ever cover these events. They may be left behind if nothing has followed from
them that the ledger lacks: no transaction was granted since the checkpoints, so none has published, and no operator has corrected
the ledger. A writer whose transaction is left behind repeats its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_NAMED = 3
"""Transactions, locks, agents or partitions that one reason names."""


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """One Kafka partition of the source."""

    number: int
    checkpoint: int | None
    """The committed offset in `writers`."""
    end: int
    """Offset of the next record in `writers`."""
    problems: tuple[str, ...] = ()
    """What its log lacks, or why an agent of this version would refuse it."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the log and the group of the source say."""

    prefix: str
    partitions: tuple[SourcePartition, ...]
    transactions: tuple[str, ...] = ()
    """Open ones, and those whose outcome is unknown, each with its writer and table."""
    locks: tuple[str, ...] = ()
    """Locks whose lease runs, each with its agent and end."""
    agents: tuple[str, ...] = ()
    """Members of the group that serve this prefix."""
    partitions_before: int | None = None
    """The number of partitions that a checkpoint names, if it is another one than now."""
    undecided: tuple[str, ...] = ()
    """Grants and corrections of the ledger since the checkpoints."""

    @property
    def unread(self) -> tuple[SourcePartition, ...]:
        """The partitions whose last events no checkpoint covers."""
        return tuple(each for each in self.partitions if each.end != (each.checkpoint or 0))


def refusals(source: Source) -> list[str]:
    """Why the ledger is not at rest, each with what to do. Empty: it is."""
    found: list[str] = []
    prefix = source.prefix
    if source.agents:
        found.append(
            f"agents serve prefix {prefix} ({_named(source.agents)}); stop them with SIGTERM, and after a SIGKILL wait for "
            "session_timeout_seconds"
        )
    problems = [problem for each in source.partitions for problem in each.problems]
    if source.partitions_before is not None:
        problems += [
            f"partition {each.number} ends at offset {each.end} and was read up to {each.checkpoint}"
            for each in source.unread
            if each.end < (each.checkpoint or 0)
        ]
        if problems or source.undecided:
            found.append(
                f"partitions were added to the topics of prefix {prefix} ({source.partitions_before}, now "
                f"{len(source.partitions)}), and no agent may decide about what was published since "
                f"({_named([*problems, *source.undecided])}); check whether the tables contain these batches, and state the last "
                "batches in a prefix of their own (docs/kafka.md, Partitions added by mistake)"
            )
        return [*found, *_of_locks(source)]
    if problems:
        found.append(
            f"the log of prefix {prefix} can't be relied on ({_named(problems)}); start an agent of the newest version, which "
            "aborts what is open, and stop it when lakewarden status shows no transaction"
        )
    if source.transactions:
        found.append(
            f"transactions of prefix {prefix} are open or in doubt ({_named(source.transactions)}); stop the writers, and let an "
            "agent serve until they have ended (lakewarden status, lakewarden abort), an unknown outcome for ten minutes more"
        )
    elif source.unread and not problems:
        places = [
            f"partition {each.number} from offset {each.checkpoint or 0} to {each.end}"
            for each in source.unread
        ]
        found.append(
            f"no checkpoint covers the last events of {prefix}.writers ({_named(places)}); stop the writers, start an agent, "
            "wait until it is ready, and stop it with SIGTERM"
        )
    return [*found, *_of_locks(source)]


def _of_locks(source: Source) -> list[str]:
    if not source.locks:
        return []
    return [f"agents hold locks ({_named(source.locks)}); wait until their leases have ended"]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
