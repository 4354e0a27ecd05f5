"""The fenced publish of one Paimon snapshot: docs/decisions/0041-paimons-fenced-publish.md has the reasons.

A state that isn't final names the next action; `step` takes its answer and returns the next state.

    state          action                                           answers
    PutSnapshot    check the grant, then put the snapshot if absent  Written, NotWritten, PutRefused
    ReadBack       read the snapshot                                Own, Foreign, Missing, Unreadable
    LookAtBase     look whether snapshot N-1 exists                 Present, Missing, Unreadable
    Trace          list the snapshots, read the next one            Contains, Excludes, Undecided, Unreadable
    Withdraw       remove the snapshot                              Removed, Unreadable
    WriteHint      write LATEST if it is lower                      HintWritten
    Recheck        look at the snapshot's version                   Own, Foreign, Missing, Unreadable

    final state    meaning
    Published      the snapshot is in the table
    Taken          another snapshot has this id, and this one is not in the table
    Withdrawn      the id had expired before the put; the snapshot was removed
    Failed         the store refused the put, and no earlier put is open: nothing is or can come in the table
    Unresolved     the snapshot may be in the table, or may come there

- A put without a success may still take effect (`in_doubt`). It is resolved only by the snapshot that is there afterwards.
- A put is repeated only if the snapshot is absent, or if the store throttled it: of several puts of one id, the store accepts
  one.
- Every action that gets no answer is repeated `MAX_TRIES` times. After a success of the put, a missing answer about the base
  leaves the outcome unknown, and a missing answer about the version at the end leaves it published.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

MAX_TRIES: Final = 3
"""Tries of one action. The caller waits between them, and its grant lease limits the whole."""

# answers


@dataclass(frozen=True, slots=True)
class Written:
    """The put took effect. `version` is the object's version, as the store names it."""

    version: str


@dataclass(frozen=True, slots=True)
class NotWritten:
    """The put got no success: an object exists, or no answer came. An earlier copy of the request may have taken effect."""

    why: str


@dataclass(frozen=True, slots=True)
class PutRefused:
    """The store rejected this put before it acted. `throttled`: because of its load, so the put may be repeated."""

    why: str
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """The snapshot there is the one of this commit."""

    version: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """The snapshot there is of the commit user `user`."""

    user: str


@dataclass(frozen=True, slots=True)
class Present:
    """The base snapshot exists."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The object does not exist."""


@dataclass(frozen=True, slots=True)
class Contains:
    """The newer snapshots are built on this one, or there are none."""


@dataclass(frozen=True, slots=True)
class Excludes:
    """The newer snapshots are not built on this one."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The retained snapshots don't show it."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The snapshot is removed."""


@dataclass(frozen=True, slots=True)
class HintWritten:
    """`LATEST` names this snapshot or a newer one, or couldn't be written: readers list the folder then."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The store gave no usable answer."""

    why: str


Answer: TypeAlias = (
    Written
    | NotWritten
    | PutRefused
    | Own
    | Foreign
    | Present
    | Missing
    | Contains
    | Excludes
    | Undecided
    | Removed
    | HintWritten
    | Unreadable
)

# states


@dataclass(frozen=True, slots=True)
class PutSnapshot:
    """`in_doubt`: an earlier put of this snapshot may still take effect."""

    tries: int = 1
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class ReadBack:
    """`puts` were sent, the last without a success."""

    puts: int
    why: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class LookAtBase:
    """The snapshot is there."""

    version: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The base is gone."""

    version: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The snapshot is in no reader's history."""

    tries: int = 1


@dataclass(frozen=True, slots=True)
class WriteHint:
    """The snapshot is published, whatever happens to the hint."""

    version: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """The snapshot is published, unless it has been replaced."""

    version: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Published:
    """`version` recognises a replacement later."""

    version: str


@dataclass(frozen=True, slots=True)
class Taken:
    """`by` is the commit user of the other snapshot. `replaced`: it came after this one, which was there."""

    by: str
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nothing of this commit is in the table."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing was published."""

    why: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The outcome must be looked up."""

    why: str


Retriable: TypeAlias = ReadBack | LookAtBase | Trace | Withdraw | Recheck
Active: TypeAlias = PutSnapshot | Retriable | WriteHint
Final_: TypeAlias = Published | Taken | Withdrawn | Failed | Unresolved
State: TypeAlias = Active | Final_


class IllegalAnswerError(Exception):
    """The answer doesn't belong to the action: a programming error."""


def step(state: Active, answer: Answer) -> State:  # noqa: C901, PLR0912 - the table of the module
    """Return the state after `answer`."""
    match state, answer:
        case PutSnapshot(), Written(version):
            return LookAtBase(version)
        case PutSnapshot(tries), NotWritten(why):
            return ReadBack(tries, why)
        case PutSnapshot(tries, in_doubt), PutRefused(throttled=True) if tries < MAX_TRIES:
            return PutSnapshot(tries + 1, in_doubt)
        case PutSnapshot(in_doubt=in_doubt), PutRefused(why):
            return Unresolved(why) if in_doubt else Failed(why)
        case ReadBack(), Own(version):
            return LookAtBase(version)
        case ReadBack(), Foreign(user):
            return Taken(user)
        case ReadBack(puts, why), Missing():
            return PutSnapshot(puts + 1, in_doubt=True) if puts < MAX_TRIES else Unresolved(why)
        case LookAtBase(version), Present():
            return WriteHint(version)
        case LookAtBase(version), Missing():
            return Trace(version)
        case Trace(version), Contains():
            return WriteHint(version)
        case Trace(), Excludes():
            return Withdraw()
        case Trace(), Undecided():
            return Unresolved("the base snapshot expired during the publish, and this one too")
        case Withdraw(), Removed():
            return Withdrawn()
        case WriteHint(version), HintWritten():
            return Recheck(version)
        case Recheck(
            version
        ), Own() | Missing():  # a missing one has expired: many newer ones are built on it
            return Published(version)
        case Recheck(), Foreign(user):
            return Taken(user, replaced=True)
        case Recheck(version, tries), Unreadable() if tries >= MAX_TRIES:
            return Published(version)
        case ((ReadBack() | LookAtBase() | Trace() | Withdraw() | Recheck()), Unreadable(why)):
            return replace(state, tries=state.tries + 1) if state.tries < MAX_TRIES else Unresolved(why)
        case _:
            raise IllegalAnswerError(f"{answer} doesn't answer {state}")


@dataclass(frozen=True, slots=True)
class CommitName:
    """By what a snapshot is recognised: commit user, commit identifier, and the transaction in its properties."""

    user: str
    identifier: int
    transaction: str | None


def traced(number: int, retained: Collection[int], *, added: bool | None) -> Contains | Excludes | Undecided:
    """Return whether the snapshots after `number`, which this commit has put, are built on it.

    `retained` are the ids in the table. `added`: whether the manifests that snapshot `number + 1` was built on name files
    of this commit; None if the commit added no file. Paimon expires the oldest snapshots first. So if this snapshot is there
    and the next one isn't, though newer ones are, the id had been used and expired before the put.
    """
    if number not in retained:
        return Undecided()
    if max(retained) == number:
        return Contains()  # the newest snapshot never expires, so this id had not been used
    if number + 1 not in retained:
        return Excludes()
    if added is None:
        return Undecided()
    return Contains() if added else Excludes()
