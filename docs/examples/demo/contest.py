"""A contest: both jobs write the same flights to one table. What the page shows of it, as text and figures."""
# ruff: noqa: INP001 - a script's neighbour

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from compare import Check

MINUTES = 60
"""Of the page's time line. A contest is followed, so it may take longer."""
COMMITTED, CONFLICT, RUNNING = "committed", "aborted by conflict", "running"


@dataclass
class TimeLine:
    """The transactions of one table, as the agent's page has them from Kafka's log. Times are seconds since the epoch."""

    page: str
    table: str
    show: Callable[[str], None]
    transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    printed: set[str] = field(default_factory=set)

    def update(self) -> None:
        """Read the page, and print a line for each transaction that has ended."""
        query = urllib.parse.urlencode({"uri": self.table, "minutes": MINUTES})
        try:
            with urllib.request.urlopen(f"{self.page.rstrip('/')}/table.json?{query}") as answer:  # noqa: S310 - of this machine
                timeline = json.load(answer)["timeline"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return  # the page can't read the log now
        for writer in timeline["writers"]:
            for each in writer["attempts"]:
                self.transactions[each["transaction"]] = {**each, "writer": short(writer["writer"])}
        for each in sorted(self.ended(), key=lambda one: one["ended"]):
            if each["transaction"] not in self.printed:
                self.printed.add(each["transaction"])
                self.show(self._line(each))

    def ended(self) -> list[dict[str, Any]]:
        return [each for each in self.transactions.values() if each["outcome"] != RUNNING]

    def settle(self, seconds: float = 30.0) -> None:
        """Follow the page until it shows the end of each transaction. The log is read a moment after it is written."""
        until = time.monotonic() + seconds
        time.sleep(2)
        self.update()
        while len(self.ended()) < len(self.transactions) and time.monotonic() < until:
            time.sleep(0.5)
            self.update()

    @property
    def begin(self) -> float:
        return min((each["started"] for each in self.transactions.values()), default=0.0)

    @property
    def seconds(self) -> float:
        """From the first step of a job to the last one, without the start of Spark."""
        return max((each["ended"] for each in self.ended()), default=self.begin) - self.begin

    def of(self, outcome: str) -> list[dict[str, Any]]:
        return [each for each in self.transactions.values() if each["outcome"] == outcome]

    @property
    def wasted_seconds(self) -> float:
        return sum(_seconds(each, "computing") for each in self.of(CONFLICT))

    def _line(self, each: dict[str, Any]) -> str:
        what = str(each["outcome"])
        if each["lost_to"]:
            what = f"aborted: CONFLICT with {', '.join(map(short, each['lost_to']))}"
        what += f", {_seconds(each, 'computing'):.1f} s of compute"
        waited = _seconds(each, "waiting")
        if waited > 0.5:
            what += f", {waited:.1f} s in the queue"
        return f"{each['ended'] - self.begin:6.1f} s  {each['writer']:<11}batch {each['batch_id']:<4}{what}"


@dataclass(frozen=True)
class Contest:
    """The results of one contest."""

    admission: str | None
    """None: without an agent."""
    check: Check
    restarts: dict[str, int]
    """How often each job was restarted after a failure."""
    timeline: TimeLine | None
    compactions: int | None = None
    """Snapshots that the compactor has committed. None: there was no compactor."""


def short(writer: str) -> str:
    """The job's name: a streaming writer is `<name>:<query id>`."""
    return writer.partition(":")[0]


def _seconds(transaction: dict[str, Any], label: str) -> float:
    """The seconds of the segments whose label begins so."""
    segments = [each for each in transaction["segments"] if each["label"].startswith(label)]
    return sum(float(each["end"] - each["begin"]) for each in segments)


def report(contests: Sequence[Contest], whole_seconds: float) -> Iterator[str]:
    """The figures of the contests side by side, and whether each table is right."""

    def line(name: str, values: list[str], meaning: str) -> str:
        return f" {name:<18}{''.join(f'{each:>12}' for each in values)}  {meaning}".rstrip()

    def counts(name: str, values: list[int], meaning: str) -> str:
        return line(name, [f"{each:,}" for each in values], meaning)

    checks = [each.check for each in contests]
    yield line("admission", [each.admission or "–" for each in contests], "")
    yield counts(
        "rows expected", [each.expected for each in checks], "every flight once, columns of both feeds"
    )
    yield counts("rows missing", [each.missing for each in checks], "flights without a row")
    yield counts("rows duplicated", [each.duplicated for each in checks], "further rows of the same flight")
    yield counts("rows wrong", [each.wrong for each in checks], "flights with a wrong value in some column")
    again = [f"{job} {number}×" for each in contests for job, number in each.restarts.items() if number]
    yield line("restarts", [str(sum(each.restarts.values())) for each in contests], ", ".join(again))
    if contests[0].compactions is not None:
        committed = [each.compactions or 0 for each in contests]
        yield counts("compactions", committed, "committed by the compactor")
    lines = [each.timeline for each in contests if each.timeline is not None]
    if lines:
        yield counts(
            "batches committed", [len(each.of(COMMITTED)) for each in lines], "one transaction for each"
        )
        conflicts = [len(each.of(CONFLICT)) for each in lines]
        yield counts("conflicts", conflicts, "the agent aborted one of two transactions")
        wasted = [f"{each.wasted_seconds:.1f} s" for each in lines]
        yield line("compute wasted", wasted, "by aborted attempts before they stopped")
        times = [f"{each.seconds:.0f} s" for each in lines]
        yield line(
            "contest time", times, f"without the start of Spark; the whole run took {whole_seconds:.0f} s"
        )
    yield _verdict(contests)


def _verdict(contests: Sequence[Contest]) -> str:
    expected = contests[0].check.expected
    without_agent = contests[0].admission is None
    if all(each.check.clean for each in contests):
        where = ". Without an agent this is chance" if without_agent else " in each table"
        return f"All {expected:,} rows are present exactly once and correct{where}."
    lost = sum(each.check.lost for each in contests)
    cause = "A bug of lakewarden: please report it with the kept folder."
    if without_agent:
        cause = "The jobs reported no error: each overwrote rows that the other had just written."
    return f"{lost:,} of {expected * len(contests):,} rows are lost or damaged. {cause}"
