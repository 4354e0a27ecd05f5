"""Who made a commit, as far as its table format says it: for a watcher's report, and for a batch that lost to the commit.

| format | says |
| --- | --- |
| Delta Lake | the engine; on Databricks the user and the job, too; of a streaming query its id |
| Iceberg | engine, Spark application, query or job: Spark, Flink and Trino name themselves in a snapshot's summary |
| Paimon | the commit user |
| Hudi | the query of its streaming sink, or that it was Hudi Streamer |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lakewarden.events.base import MAX_ORIGIN
from lakewarden.events.codec import json_object

_STREAMER: Final = ("deltastreamer.checkpoint.", "streamer.checkpoint.")


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a commit. Writers choose these texts; each is cut at `MAX_ORIGIN`."""

    engine: str | None = None
    """With its version."""
    user: str | None = None
    job: str | None = None
    """A job, a streaming query, or the user of Paimon's commits."""
    application: str | None = None
    """Id of the Spark application."""

    @classmethod
    def of(cls, *, engine: Any = None, user: Any = None, job: Any = None, application: Any = None) -> Maker:
        found = (_clean(each) if each else None for each in (engine, user, job, application))
        return cls(*found)

    @property
    def name(self) -> str | None:
        """The most exact name of the writer, or None if only its engine is known."""
        return self.job or self.application or self.user

    @property
    def text(self) -> str | None:
        """All of it, or None if nothing is known."""
        named = (
            ("", self.engine),
            ("job ", self.job),
            ("user ", self.user),
            ("Spark application ", self.application),
        )
        return ", ".join(f"{what}{name}" for what, name in named if name) or None

    def of_commit(self, version: str, operation: Any) -> str:
        """A commit as text: its version, what it did, and who made it."""
        return _clean(f"{version}: " + ", ".join(map(str, filter(None, (operation, self.text)))))


UNKNOWN_MAKER: Final = Maker()


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit to which a batch was lost."""

    commit: str
    """As text (`Maker.of_commit`)."""
    transaction: str | None
    """The transaction of the gate that its label names. None: its writer bypasses the gate, or is one that labels nothing."""
    is_known: bool = True
    """Whether the table shows that it was this commit, and not one that it no longer has."""

    @property
    def text(self) -> str:
        return self.commit if self.transaction is None else f"{self.commit}, transaction {self.transaction}"


def winner_of(commits: Sequence[Winner]) -> Winner | None:
    """Return to which of the commits a batch was lost: any of them may be it, the newest first. None: it isn't known.

    Of several, it isn't even known whether it went through the gate, if only some did.
    """
    if len({each.transaction is None for each in commits}) != 1 or not all(each.is_known for each in commits):
        return None
    if len(commits) == 1:
        return commits[0]
    return Winner(f"one of {len(commits)} commits, the newest is {commits[0].commit}", commits[0].transaction)


def _clean(value: Any) -> str:
    """JSON can have halves of characters, which no event can."""
    return str(value)[:MAX_ORIGIN].encode(errors="replace").decode()


def of_delta(info: Mapping[str, Any], actions: Iterable[tuple[str, dict[str, Any]]]) -> Maker:
    """`commitInfo` and the commit's actions. A streaming query and `txnAppId` add a `txn`."""
    job = info.get("job")
    job = (job.get("jobName") or job.get("jobId")) if isinstance(job, dict) else None
    query = next((action.get("appId") for kind, action in actions if kind == "txn"), None)
    engine = info.get("engineInfo") or info.get("clientVersion")
    return Maker.of(engine=engine, user=info.get("userName"), job=job or query)


def of_iceberg(summary: Mapping[str, str]) -> Maker:
    """The summary of a snapshot."""
    engine = " ".join(str(summary[each]) for each in ("engine-name", "engine-version") if each in summary)
    jobs = ("lakewarden.writer", "spark.sql.streaming.queryId", "flink.job-id", "trino_query_id")
    return Maker.of(
        engine=engine,
        job=next((summary[each] for each in jobs if each in summary), None),
        application=summary.get("spark.app.id") or summary.get("app-id"),
    )


def of_hudi(extra: Mapping[str, str]) -> Maker:
    """The extra metadata of a commit, where the streaming sink keeps its checkpoint, and the streamer its source's position."""
    queries = json_object(extra.get("_hudi_streaming_sink_checkpoint"))
    streamer = "Hudi Streamer" if any(each.startswith(_STREAMER) for each in extra) else None
    return Maker.of(engine=streamer, job=next(iter(queries), None))
