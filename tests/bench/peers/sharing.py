"""When a conflict began to exist between two writes of one Hudi table, from the files that both have in the table.

It is measured in the same way for Hudi's own ways and for the gate's. A thread looks at the table's files every `LOOK_SECONDS`,
in the folder of the S3 server and not through it, so it sends no request.

- A write *shows* a file group when its inflight file or one of its markers names it.
- A *conflict exists* from the moment when a second write shows a file group that another one has shown. Both are pending, or one
  has committed after the other began.
- The *losing attempt* is one that ends without a commit. Its conflict is the earliest one with a write that has committed, or
  still runs when the attempt has stopped. If there is none, it is the earliest one with any write: Hudi's early detection also
  ends a write for the markers of a write that has failed.
- An attempt's instant is the one for which a client of the attempt has a heartbeat, as in `HudiSink`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from lakewarden.events import Marker
from lakewarden.handlers.hudi.timeline import Instant
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles

LOOK_SECONDS = 0.02

FileGroup = tuple[str, str]
"""Partition and file group."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to commit a batch that has ended. Times are monotonic seconds."""

    name: str
    began: float
    ended: float
    committed: bool


@dataclass(slots=True)
class Write:
    """What the table's files showed of one instant. Times are monotonic seconds."""

    attempt: str | None
    began: float
    shown: dict[FileGroup, float] = field(default_factory=dict)
    """When each file group was first shown."""
    ended: float | None = None
    """When the instant was completed or removed."""
    committed: bool = False

    def shows(self, markers: Iterable[Marker], at: float) -> None:
        """Add the file groups of these markers."""
        for each in markers:
            self.shown.setdefault((each.partition, each.file_group), at)


def seconds_to_stop(attempts: Sequence[Attempt], writes: Sequence[Write]) -> list[float | None]:
    """For each losing attempt the seconds from the existence of its conflict until it stopped; None: no conflict was seen."""
    ended = {each.name: each.ended for each in attempts}
    by_attempt = {each.attempt: each for each in writes if each.attempt is not None}
    found: list[float | None] = []
    for attempt in attempts:
        if attempt.committed:
            continue
        write = by_attempt.get(attempt.name)
        since = None if write is None else _conflict(write, attempt.ended, writes, ended)
        found.append(None if since is None else attempt.ended - since)
    return found


def _conflict(loser: Write, stopped: float, writes: Sequence[Write], ended: dict[str, float]) -> float | None:
    preferred: list[float] = []
    others: list[float] = []
    for other in writes:
        if other is loser or other.began >= stopped or (other.ended or stopped) <= loser.began:
            continue
        shared = [max(at, other.shown[group]) for group, at in loser.shown.items() if group in other.shown]
        since = min(shared, default=stopped)
        if since >= stopped:
            continue
        runs = ended.get(other.attempt or "", stopped) >= stopped
        (preferred if other.committed or runs else others).append(since)
    return min(preferred or others, default=None)


class Looks:
    """Looks at the table inside the `with`."""

    def __init__(self, files: HudiFiles, owner_of: Callable[[str], str | None]) -> None:
        """`owner_of`: the attempt that has requested an instant."""
        self._files = files
        self._owner_of = owner_of
        self._writes: dict[str, Write] = {}
        self._planned: set[str] = set()
        self._sizes: dict[str, dict[str, int]] = {}
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="looks")

    def __enter__(self) -> Self:
        self._look()  # what is in the table before
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def writes(self) -> list[Write]:
        """Return what was seen."""
        if self._error is not None:
            raise self._error
        return list(self._writes.values())

    def _run(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                with suppress(
                    FileNotFoundError
                ):  # a file was removed after it was listed: the next look comes soon
                    self._look()
            self._look()
        except BaseException as error:  # noqa: BLE001 - raised by `writes`
            self._error = error

    def _look(self) -> None:
        instants = {each.time: each for each in self._files.instants() if each.writes}
        now = time.monotonic()
        for name, instant in instants.items():
            if name not in self._writes:
                self._writes[name] = Write(None, now)
            write = self._writes[name]
            if write.ended is not None:
                continue
            if instant.state == "completed":
                write.ended, write.committed = now, True
            else:
                self._look_at(instant, write)
        for name, write in self._writes.items():
            if name not in instants and write.ended is None:
                write.ended = now

    def _look_at(self, instant: Instant, write: Write) -> None:
        name = instant.time
        if write.attempt is None:
            write.attempt = self._owner_of(name)
        if instant.state == "inflight" and name not in self._planned:
            planned = self._files.planned(name)
            if planned is not None:
                self._planned.add(name)
                write.shows(planned, time.monotonic())
        found = self._files.markers(name, self._sizes.setdefault(name, {}))
        write.shows(found, time.monotonic())
