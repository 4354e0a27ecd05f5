"""What every part of `make bench` gets: the sizes, a broker, and topics and a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from lakewarden.agent.settings import Settings
from tests.bench.agent_process import AgentProcess
from tests.bench.peers.workload import Workload
from tests.bench.writers import Writers

Figures: TypeAlias = dict[str, Any]
Rows: TypeAlias = Iterable[Sequence[str]]
"""Title, figure and aim."""


def sized(size: Any, quick: Any) -> Any:
    """A size, and the one of a smoke run."""
    return field(default=size, metadata={"quick": quick})


SMALL = Workload(2, overlap=True, batches=2, rows_per_day=50, rows_per_batch=20, days_per_batch=2)

SMALL_BATCHES = tuple(
    Workload(
        writers,
        overlap=False,
        batches=30,
        rows_per_day=5_000,
        rows_per_batch=100,
        days_per_batch=2,
        small=True,
        append=append,
    )
    for append in (True, False)
    for writers in (1, 2)
)


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of all parts. With 0 fail-overs only the shorter one is measured, once."""

    trials: int = sized(300, 10)
    warm_up: int = sized(30, 3)
    markers: int = sized(1_000_000, 3_000)
    ledger_entries: int = sized(1_000_000, 3_000)
    repetitions: int = sized(3, 1)
    checks: int = sized(101, 5)
    large_check: int = sized(1_000_000, 2_000)
    """Markers."""
    sweeps: int = sized(5, 1)
    step_markers: int = sized(2_000_000, 20_000)
    step_transactions: int = sized(1_000, 10)
    failovers: int = sized(3, 0)
    peers: Sequence[Workload] = sized(
        (
            *(
                Workload(
                    writers, overlap, batches, rows_per_day=60_000, rows_per_batch=10_000, days_per_batch=5
                )
                for writers, overlap, batches in ((2, True, 8), (2, False, 8), (4, True, 4))
            ),
            *(
                Workload(
                    2, overlap, 4, rows_per_day=400_000, rows_per_batch=50_000, days_per_batch=5, large=True
                )
                for overlap in (True, False)
            ),
            *(
                Workload(
                    2, overlap, 8, rows_per_day=60_000, rows_per_batch=10_000, days_per_batch=5, rest=True
                )
                for overlap in (True, False)
            ),
            *SMALL_BATCHES,
        ),
        (SMALL,),
    )
    """Of Delta and Iceberg."""
    hudi_peers: Sequence[Workload] = sized(
        tuple(
            Workload(writers, overlap, batches, rows_per_day=30_000, rows_per_batch=5_000, days_per_batch=5)
            for writers, overlap, batches in ((2, True, 4), (2, False, 4), (4, True, 2))
        )
        + SMALL_BATCHES,
        (SMALL,),
    )
    """A batch of Hudi takes longer, so batches and files are half as large, and four writers have half as many batches."""
    paimon_writers: int = sized(4, 2)
    paimon_commits: int = sized(25, 2)
    """Of each writer."""
    paimon_stopped_seconds: float = sized(60.0, 1.0)


QUICK = Size(**{each.name: each.metadata["quick"] for each in fields(Size)})


@dataclass(frozen=True, slots=True)
class Run:
    """One round of a part."""

    size: Size
    servers: str
    prefix: str
    folder: Path

    def within(self, name: str) -> Run:
        """A run with topics and a folder of its own."""
        return replace(self, prefix=f"{self.prefix}-{name}", folder=self.folder / name)

    def agent(self, name: str = "agent", **settings: str) -> AgentProcess:
        """An agent, which runs inside the `with`."""
        return AgentProcess(self.servers, self.prefix, self.folder / name, **settings)

    def writers(self) -> Writers:
        """Writers, which are connected inside the `async with`."""
        return Writers(self.servers, self.prefix)

    def settings(self, **others: Any) -> Settings:
        return Settings.load(bootstrap_servers=self.servers, topic_prefix=self.prefix, **others)


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is measured, and how its figures are printed."""

    measure: Callable[[Run], Figures]
    rows: Callable[[Figures], Rows]
    footnote: str = ""
    broker: bool = True


def progress(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)
