"""Where a table's lock object is, and which tables an event may make the agent touch.

Events come from the network. They name tables, which the globs of `tables` must cover. No event determines which object the
agent writes: the location of a table's lock is the agent's knowledge. The first rule that applies counts:

    rule                                                     the lock object
    a glob of `lock_places` covers the table                 the place that the operator names: `hudi`, `default` or an object
    the table has `.hoodie/hoodie.properties`                <table>/.hoodie/.locks/table_lock.json, shared with Hudi's writers
    otherwise                                                <lock root>/locks/<cleaned path>-<hash>.json, the default location

Globs are compared with the whole canonical URI. `*` matches any characters, `/` too. A glob without a wildcard covers that table
and everything below it.

- The hash is the first 8 hex digits of the SHA-256 of the table's URI.
- The lock root is the configured one, or else the table's own bucket. A local table has no bucket, so it needs a configured one.
- An object that the operator names counts as shared with Hudi's writers if it is at Hudi's location of any table.

The second rule needs a read of the table's store (`LookUp`):

    the read                              the agent
    found, absent                         knows the location
    no answer, throttled                  reads again after a back-off
    refused                               reads again; reports `refused-too-long` as the lock's automaton does (`machine.py`)
    refused for good                      serves no transaction of the table: its URI names no object

A Hudi table stays one. A table that was none is looked up again when it is used after a pause, because its first commit may have
created it.
"""

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeAlias, assert_never

from lakewarden.events import is_glob, object_uri
from lakewarden.handlers.lease.conditional import Absent, Found, ReadOutcome, Refused, Throttled, Unknown
from lakewarden.handlers.lease.types import LeaseSettings, Refusal

HUDI_LOCK: Final = "/.hoodie/.locks/table_lock.json"
HUDI_PROPERTIES: Final = "/.hoodie/hoodie.properties"
"""Every Hudi table has this file, and no other table does."""
DEFAULT, HUDI = "default", "hudi"
"""Locations in `lock_places` that depend on the table."""
_MAX_CLEANED, _MAX_CLEANED_ON_DISK, _MAX_KEY = 900, 200, 1024
"""Characters. Stores take keys of 1,024 bytes, file systems names of 255. The hash distinguishes tables."""
_UNCLEAN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LockLocation:
    """The URI of a table's lock object. `shared`: unmodified Hudi writers may hold this lock, too."""

    uri: str
    shared: bool


def hudi_location(table: str) -> LockLocation:
    """Hudi's own lock of a table. On object stores, Hudi's client decodes this URI, as ours does. It has none for local disks."""
    uri = object_uri(table, HUDI_LOCK) if table.startswith("file:") else table + HUDI_LOCK
    return LockLocation(uri, shared=True)


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The agent must not touch this table, or has no location for its lock. `why` names the setting that would change that."""

    why: str


@dataclass(frozen=True, slots=True)
class ConfiguredLocation:
    """An entry of `lock_places`: where the locks of the tables are that `glob` covers."""

    glob: str
    location: str
    """`hudi`, `default` or the URI of an object."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The configured limits for tables, and the configured locations of locks."""

    allow: tuple[str, ...]
    lock_root: str | None = None
    places: tuple[ConfiguredLocation, ...] = ()

    def allows(self, table: str) -> bool:
        return any(_covers(glob, table) for glob in self.allow)

    def configured(self, table: str) -> LockLocation | NotAllowed | None:
        """The location of the table's lock by `lock_places`. None: the table must be looked up."""
        named = next((each.location for each in self.places if _covers(each.glob, table)), None)
        match named:
            case None:
                return None
            case "hudi" | "default":
                return self.location(table, hudi=named == HUDI)
            case _:
                return LockLocation(named, shared=named.endswith(HUDI_LOCK))

    def location(self, table: str, *, hudi: bool) -> LockLocation | NotAllowed:
        """The location of the lock of a table that is a Hudi table, or is none."""
        if hudi:
            return hudi_location(table)
        if self.lock_root is None and table.startswith("file:"):
            return NotAllowed(f"local table {table} has no bucket for its lock; set --lock-root")
        return LockLocation(self._default_uri(table), shared=False)

    def _default_uri(self, table: str) -> str:
        scheme, rest = table.split("://", 1)
        authority, path = rest.split("/", 1)
        root = self.lock_root.rstrip("/") if self.lock_root else f"{scheme}://{authority}"
        end = f"-{hashlib.sha256(table.encode()).hexdigest()[:8]}.json"
        folder = root.partition("://")[2].partition("/")[2]
        room = max(0, _MAX_KEY - len(f"{folder}/locks/{end}".encode()))
        longest = _MAX_CLEANED_ON_DISK if root.startswith("file:") else min(_MAX_CLEANED, room)
        return f"{root}/locks/{_UNCLEAN.sub('-', path).strip('-')[:longest]}{end}"


@dataclass(frozen=True, slots=True)
class LookUp:
    """The reads so far that did not show whether a table is a Hudi table."""

    failures: int = 0
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class LookAgain:
    """The read showed nothing. Read again after `seconds`."""

    look_up: LookUp
    seconds: float
    why: str
    reported: bool
    """Whether to report it: the first one of a series, and every few after that."""
    too_long: bool
    """Whether the store has refused for `refusal_seconds`, so that transactions must not wait any longer."""


LookedUp: TypeAlias = LockLocation | NotAllowed | LookAgain


def judge_look_up(
    placement: Placement,
    table: str,
    look_up: LookUp,
    outcome: ReadOutcome,
    settings: LeaseSettings,
    *,
    now: float,
    jitter: float,
) -> LookedUp:
    """What a read of the table's `HUDI_PROPERTIES` shows. `now`: monotonic seconds; `jitter`: uniform in [0, 1)."""
    match outcome:
        case Found():
            return placement.location(table, hudi=True)
        case Absent():
            return placement.location(table, hudi=False)
        case Refused(why=why, unusable=True):
            return NotAllowed(f"table {table} can't be read: {why}")
        case Throttled(why=why) | Unknown(why=why):
            refusal, too_long = None, False
        case Refused(why=why):
            refusal = Refusal.after(look_up.refusal, now, why)
            too_long = refusal.lasts(now, settings)
        case _:
            assert_never(outcome)
    failures = look_up.failures + 1
    seconds = settings.next_wait(failures, jitter)
    reported = look_up.failures % settings.failures_per_report == 0
    return LookAgain(LookUp(failures, None if too_long else refusal), seconds, why, reported, too_long)


def _covers(glob: str, uri: str) -> bool:
    if is_glob(glob):
        return fnmatchcase(uri, glob)
    return uri == glob or uri.startswith(glob.rstrip("/") + "/")
