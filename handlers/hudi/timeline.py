"""The timeline of a Hudi table: which instants it has, and how far each is, from the names of its files.

| | layout 1 (table version 6), in `.hoodie/` | layout 2 (table versions 8 and 9), in `.hoodie/timeline/` |
| --- | --- | --- |
| requested | `<t>.commit.requested` | the same |
| inflight | `<t>.inflight` (a commit), `<t>.deltacommit.inflight` | the same |
| completed | `<t>.commit` | `<t>_<completion>.commit`; without a completion time in a table that was upgraded |

Rules:

1. An instant is known by its time *and* what it completes as: a savepoint has the time of its commit.
2. A table service completes under another name: a compaction as `commit`, a log compaction as `deltacommit`, a clustering as
   `replacecommit`. In layout 1, a clustering is called `replacecommit` from the start; only its plan says what it is.
3. A file counts as far as the instant has come: where `completed` exists, `requested` and `inflight` remain beside it.
4. Any other name is no file of the timeline: `hoodie.properties`, folders, checksums, and the temporary names
   `<name>.<uuid>` under which Hudi writes a file before it renames it.
5. Hudi takes the files of every instant before the first completed one for committed, because it takes that instant for
   archived. In a table's first writes it may be pending, or dead (decision 36).
"""

import re
from calendar import timegm
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakewarden.handlers.partition_spelling import date_of
from lakewarden.handlers.unreadable import Unreadable

Layout: TypeAlias = Literal[1, 2]
State: TypeAlias = Literal["requested", "inflight", "completed"]

META_FOLDER = ".hoodie/"
"""Below the table's root. Everything that this package reads is in there."""
PROPERTIES = META_FOLDER + "hoodie.properties"
MARKER_FOLDER = META_FOLDER + ".temp/"
"""Has a folder per pending instant, with its markers."""
HEARTBEAT_FOLDER = META_FOLDER + ".heartbeat/"
"""Has a file per pending instant. Its time of modification is the heartbeat. Only writers with the policy LAZY have one."""

_NAME = re.compile(
    r"(?P<time>[0-9]{1,32})(_(?P<completion>[0-9]{1,32}))?\.(?P<action>[a-z]{1,32})(\.(?P<state>requested|inflight))?"
)
_COMPLETES_AS = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}
_WRITES = frozenset({"commit", "deltacommit", "replacecommit"})
_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 3))
"""Where year, month, day, hour, minute, second and milliseconds are in an instant's time, and how long."""
_ORDER: dict[State, int] = {"requested": 0, "inflight": 1, "completed": 2}


class UnreadableHudi(Unreadable):
    """A name or a file isn't what Hudi writes, or it is of a release that this package doesn't know. The text says which."""


@dataclass(frozen=True, slots=True)
class TimelineFile:
    """One file of the timeline."""

    name: str
    time: str
    """The instant's time, by which Hudi calls it: 17 digits (`yyyyMMddHHmmssSSS`), 14 in old tables."""
    action: str
    """As in the name: `commit`, `compaction`, `clean`, ... One that a later release adds is kept as it is."""
    state: State
    completion: str | None = None
    """When it was completed; only of a completed instant of layout 2."""

    @property
    def completes_as(self) -> str:
        return _COMPLETES_AS.get(self.action, self.action)


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant with all its files, at least one."""

    time: str
    files: tuple[TimelineFile, ...]
    """By state, the earliest first; each state at most once."""

    @property
    def state(self) -> State:
        return self.files[-1].state

    @property
    def action(self) -> str:
        """What it was requested as, as far as its files still say so: of a table service its own name, not `commit`."""
        return self.files[0].action

    @property
    def completes_as(self) -> str:
        return self.files[-1].completes_as

    @property
    def completion(self) -> str | None:
        """When it was completed, if it is and the layout says so."""
        return self.files[-1].completion

    @property
    def writes(self) -> bool:
        """Whether it changes the table's files: an upsert or a compaction does, a clean or a savepoint doesn't."""
        return self.completes_as in _WRITES

    @property
    def is_table_service(self) -> bool:
        """Whether its name says that it is a compaction or a clustering (rule 2: in layout 1 a clustering's name doesn't)."""
        return self.action in _COMPLETES_AS

    def file(self, state: State) -> TimelineFile | None:
        return next((each for each in self.files if each.state == state), None)


def parse_name(name: str, layout: Layout) -> TimelineFile | None:
    """What the name of a file in the timeline's folder says. None: it is no file of the timeline (rule 4)."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    time, completion, action, pending = match["time"], match["completion"], match["action"], match["state"]
    if pending is None and action == "inflight":
        action, pending = "commit", "inflight"
    if completion is not None and (pending is not None or layout == 1):
        return None
    if pending is None and action in {"requested", *_COMPLETES_AS}:
        return None
    state: State = "completed" if pending is None else "requested" if pending == "requested" else "inflight"
    return TimelineFile(name, time, action, state, completion)


def instants(names: Iterable[str], layout: Layout) -> list[Instant]:
    """The instants in a listing of the timeline's folder, the oldest first. `names`: relative to that folder."""
    found: dict[tuple[str, str], dict[State, TimelineFile]] = {}
    for name in sorted(names):
        file = parse_name(name, layout)
        if file is not None:
            found.setdefault((file.time, file.completes_as), {})[file.state] = file
    return [
        Instant(time, tuple(sorted(files.values(), key=lambda file: _ORDER[file.state])))
        for (time, _), files in sorted(found.items())
    ]


def seconds_of(time: str) -> float | None:
    """The seconds of an instant's time since 1970, in the time zone of the table's writers; None: it is no time."""
    fields = [int(time[at : at + size] or 0) for at, size in _FIELDS] if time.isdecimal() else [0]
    try:
        return timegm(tuple(fields[:6])) + fields[6] / 1000
    except (ValueError, IndexError, OverflowError):
        return None


def time_of(seconds: float) -> str:
    """The day of these seconds since 1970, as the beginning of an instant's time."""
    return date_of(int(seconds // 86_400)).replace("-", "")


def taken_for_committed(found: Iterable[Instant], completing: str | None = None) -> list[Instant]:
    """The pending writes whose files Hudi reads as committed, or would once the instant `completing` is completed (rule 5)."""
    writes = [each for each in found if each.writes]
    completed = [each.time for each in writes if each.state == "completed" or each.time == completing]
    first = min(completed, default="")
    return [each for each in writes if each.state != "completed" and each.time < first]
