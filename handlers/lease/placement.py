"""Which tables and lock objects an event may make the agent touch, and where a table's lock object is.

Events come from the network, so they are checked against the configuration:

- A table is served only if one of the `allow` globs covers it.
- A lock that an intent names is used only if it is under the lock root, or in a folder that one of the globs covers, or if it is
  the table's own Hudi lock.

Globs are compared with the whole canonical URI. `*` matches any characters, `/` too. A glob without a wildcard covers that table
and everything below it.

    the intent names                     the lock object
    no lock                              <lock root>/locks/<cleaned path>-<hash>.json
    the table's own Hudi lock            <table>/.hoodie/.locks/table_lock.json, shared with unmodified Hudi writers
    another object that is allowed       that object

- The hash is the first 8 hex digits of the SHA-256 of the table's URI.
- The lock root is the configured one, or else the table's own bucket. A local table has no bucket, so it needs a configured one.
- An allowed object of another table's Hudi lock counts as shared, too.
- Locks are named by canonical URIs, as tables are.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lakewarden.events import require_canonical

HUDI_LOCK = "/.hoodie/.locks/table_lock.json"
_UNCLEAN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LockPlace:
    """The URI of a table's lock object. `shared`: unmodified Hudi writers may hold this lock, too."""

    uri: str
    shared: bool


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The agent must not touch this table or lock. `why` names the setting that would allow it."""

    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The configured limits for tables and locks that events name."""

    allow: tuple[str, ...]
    lock_root: str | None = None

    def allows(self, table: str) -> bool:
        """Whether one of the globs covers this table."""
        return any(_covers(glob, table) for glob in self.allow)

    def locate(self, table: str, lock: str | None) -> LockPlace | NotAllowed:
        """The lock object of `table`. `lock`: the one that the intent names, if any."""
        if not self.allows(table):
            return NotAllowed(
                f"table {table} is not among the allowed ones; start the agent with --allow {table}"
            )
        if lock is None:
            if self.lock_root is None and table.startswith("file:"):
                return NotAllowed(f"local table {table} has no bucket for its lock; set --lock-root")
            return LockPlace(self._default_uri(table), shared=False)
        if lock == table + HUDI_LOCK:
            return LockPlace(lock, shared=True)
        try:
            require_canonical(lock)
        except ValueError as error:
            return NotAllowed(f"lock of table {table} is not a plain object URI: {error}")
        inside_root = self.lock_root is not None and lock.startswith(self.lock_root.rstrip("/") + "/")
        folder = lock.rsplit("/", 1)[0]
        if inside_root or any(_covers(glob, folder) for glob in self.allow):
            return LockPlace(lock, shared=lock.endswith(HUDI_LOCK))
        return NotAllowed(f"lock {lock} of table {table} lies outside the lock root and the allowed tables")

    def _default_uri(self, table: str) -> str:
        scheme, rest = table.split("://", 1)
        authority, path = rest.split("/", 1)
        root = self.lock_root.rstrip("/") if self.lock_root else f"{scheme}://{authority}"
        cleaned = _UNCLEAN.sub("-", path).strip("-")
        digest = hashlib.sha256(table.encode()).hexdigest()[:8]
        return f"{root}/locks/{cleaned}-{digest}.json"


def _covers(glob: str, uri: str) -> bool:
    if any(wild in glob for wild in "*?["):
        return fnmatchcase(uri, glob)
    return uri == glob or uri.startswith(glob.rstrip("/") + "/")
