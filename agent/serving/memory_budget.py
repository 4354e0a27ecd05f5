"""The agent's memory budget for what transactions touch, shared by all its partitions.

Each owner reports how many bytes a table needs after each step and each replayed event. When the sum exceeds the budget, the
owners free the largest part, one after another, until the rest fits. What is freed is decided in `handlers/table/memory.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from lakewarden.handlers.table.memory import FREE_SHARE, Excess

log = structlog.get_logger()


class Holder(Protocol):
    """The tables of a partition."""

    number: int

    def largest(self, *, last_resort: bool) -> tuple[str, Excess] | None:
        """The table in which it can free most, and what. `last_resort`: nothing can be aborted in any partition."""
        ...

    def free(self, uri: str, excess: Excess) -> None: ...


class MemoryBudget:
    """Counts bytes, and has owners free some above `limit`."""

    def __init__(
        self,
        limit: int,
        on_used: Callable[[int], object] = lambda _: None,
        on_eviction: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_used` is called with the sum after each change, `on_eviction` after an owner has freed a part."""
        self.limit = limit
        self._on_used = on_used
        self._on_eviction = on_eviction
        self.used = 0
        self._used_by: dict[Holder, dict[str, int]] = {}
        self._held = False
        self._reported = False

    def note(self, owner: Holder, uri: str, used: int) -> None:
        """Note how many bytes a table of this owner needs now, and free some if the sum exceeds the budget."""
        tables = self._used_by.setdefault(owner, {})
        self.used += used - tables.pop(uri, 0)
        if used:
            tables[uri] = used
        self._on_used(self.used)
        self.enforce()

    def enforce(self) -> None:
        if self.used > self.limit and not self._held:
            with self.held():
                self._free()

    def forget(self, owner: Holder) -> None:
        self.used -= sum(self._used_by.pop(owner, {}).values())
        self._on_used(self.used)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Free nothing while the block runs."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def _free(self) -> None:
        enough = self.limit * (1 - FREE_SHARE)
        while self.used > enough:
            found = self._largest(last_resort=False) or self._largest(last_resort=True)
            before = self.used
            if found is not None:
                owner, uri, excess = found
                log.warning(
                    "memory.budget-reached",
                    table=uri,
                    transaction=excess.transaction,
                    frees_bytes=excess.freed,
                    used_bytes=before,
                    limit_bytes=self.limit,
                )
                owner.free(uri, excess)
            if self.used >= before:
                self._report_excess()
                return
            self._on_eviction()
        self._reported = False

    def _report_excess(self) -> None:
        """Log once that nothing is left to abort: paused owners, or transactions without markers in a replay."""
        if not self._reported:
            log.error("memory.over-budget", used_bytes=self.used, limit_bytes=self.limit)
            self._reported = True

    def _largest(self, *, last_resort: bool) -> tuple[Holder, str, Excess] | None:
        found = [
            (owner, *largest)
            for owner in self._used_by
            if (largest := owner.largest(last_resort=last_resort)) is not None
        ]
        return max(found, key=lambda each: (each[2].freed, -each[0].number), default=None)
