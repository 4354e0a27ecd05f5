"""The releases of Spark and of the table formats that lakewarden is tested with: the only place that names them.

The sinks use classes of the formats that are no stable API. Another release may have them, and use them in another way. So a
sink accepts the releases of this table, unless the user says otherwise, and compares their hooks with those that it uses.

`python -m lakewarden.spark_jobs.sinks.releases > docs/releases.md` makes the page. CONTRIBUTING.md says how to add a release.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark


@dataclass(frozen=True, slots=True)
class Spark:
    """A minor release of Spark."""

    pyspark: str
    """The release that the tests run."""
    python: str
    hadoop: str
    """The release of `hadoop-aws` that belongs to its Hadoop."""
    kafka: str
    """Its Kafka source. PySpark has releases that Maven Central doesn't have (3.5.9, 4.0.5, 4.3.0)."""


_KAFKA: Final = "org.apache.spark:spark-sql-kafka-0-10"
SPARK: Final = {
    "3.5": Spark("3.5.9", "3.11", "3.3.4", f"{_KAFKA}_2.12:3.5.7"),
    "4.0": Spark("4.0.5", "3.11 to 3.13", "3.4.1", f"{_KAFKA}_2.13:4.0.0"),
    "4.1": Spark("4.1.4", "3.11 to 3.13", "3.4.2", f"{_KAFKA}_2.13:4.1.1"),
    "4.2": Spark("4.2.1", "3.11 to 3.13", "3.5.0", f"{_KAFKA}_2.13:4.2.0"),
    "4.3": Spark("4.3.0", "3.11 to 3.13", "3.5.0", f"{_KAFKA}_2.13:4.2.0"),
}
DEFAULT: Final = "4.0"
"""The minor release of Spark that the lock file has."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The releases of a table format."""

    name: str
    artifacts: Mapping[str, tuple[str, ...]]
    """Maven coordinates that were tried, by the minor release of Spark. The first is the one that messages name."""
    hooks: frozenset[str] = frozenset()
    """Internals of the format that the sink uses or implements."""
    may_lack: frozenset[str] = frozenset()
    """Hooks that only some releases have."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Minor releases that were tried and aren't accepted: the reasons, by `<release>` or `<release> on Spark <release>`."""

    def jar(self, spark: str) -> str | None:
        """Return the coordinate for this release of Spark, or None if there is none."""
        return next(iter(self.artifacts.get(minor(spark), ())), None)

    def tried(self, spark: str) -> list[str]:
        """Return the minor releases of the format that were tried on this release of Spark."""
        return list(dict.fromkeys(minor(release_of(each)) for each in self.artifacts.get(minor(spark), ())))

    def differing(self, found: Collection[str]) -> list[str]:
        """Return the hooks that the session's release has and the sink doesn't know, or that it lacks."""
        return sorted((self.hooks ^ set(found)) - self.may_lack)

    def missing(self, spark: str) -> UnsupportedSpark:
        """The error if the session doesn't have the format."""
        jar = self.jar(spark)
        if jar is None:
            return UnsupportedSpark(
                f"{self.name} is not on the driver's class path, and no release of it was tried on Spark {spark}: use Spark "
                f"{', '.join(self.artifacts)}"
            )
        return UnsupportedSpark(
            f"{self.name} is not on the driver's class path: start Spark with spark.jars.packages={jar}"
        )

    def require(self, version: str, spark: str, *, untried: bool | None = None) -> None:
        """Raise `UnsupportedSpark` if this version wasn't tried on this version of Spark.

        `untried`: whether the user accepts that. None: the sink can't.
        """
        if untried or minor(version) in self.tried(spark):
            return
        known = {minor(version), f"{minor(version)} on Spark {minor(spark)}"}
        reasons = "".join(f" ({reason})" for release, reason in self.refused.items() if release in known)
        accepted = ", ".join(
            f"{each} on Spark {spark}" for spark in self.artifacts for each in self.tried(spark)
        )
        raise UnsupportedSpark(
            f"{self.name} {version} on Spark {spark} is not accepted by this sink{reasons}, only {accepted}; use one of them"
            + (
                ""
                if untried is None
                else ", or pass untried_release=True after a test with a copy of your table"
            )
        )


_DELTA: Final = "io.delta:delta-spark"
DELTA: Final = TableFormat(
    "Delta Lake",
    {
        "3.5": (f"{_DELTA}_2.12:3.3.2",),
        "4.0": (f"{_DELTA}_2.13:4.0.0", f"{_DELTA}_4.0_2.13:4.2.0"),
        "4.1": (f"{_DELTA}_4.1_2.13:4.4.0",),
        "4.2": (f"{_DELTA}_4.2_2.13:4.4.0",),
    },
    # Methods of `TransactionExecutionObserver`. No release that was tried calls `nextObserver_$eq`.
    hooks=frozenset(
        {
            "startingTransaction",
            "preparingCommit",
            "beginDoCommit",
            "beginBackfill",
            "beginPostCommit",
            "transactionCommitted",
            "transactionAborted",
            "createChild",
            "advanceToNextThreadObserver",
            "nextObserver",
            "nextObserver_$eq",
            "setNextObserver",
            "getNextObserver",
        }
    ),
    may_lack=frozenset({"getNextObserver"}),
    refused={
        "3.2": "its observer isn't called after the commit",
        "4.2 on Spark 4.1": "its ALTER TABLE needs a class that Spark 4.1.4 no longer has (IgnoreCachedData)",
    },
)

_ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime"
ICEBERG: Final = TableFormat(
    "Iceberg",
    {
        "3.5": tuple(
            f"{_ICEBERG}-3.5_2.12:{each}" for each in ("1.10.0", "1.9.2", "1.8.1", "1.7.1", "1.6.1")
        ),
        "4.0": tuple(f"{_ICEBERG}-4.0_2.13:{each}" for each in ("1.10.0", "1.11.0")),
        "4.1": tuple(f"{_ICEBERG}-4.1_2.13:{each}" for each in ("1.12.0", "1.11.0")),
    },
    hooks=frozenset({"org.apache.iceberg.spark.SparkTableCache"}),
)

HUDI: Final = TableFormat(
    "Hudi",
    {"3.5": tuple(f"org.apache.hudi:hudi-spark3.5-bundle_2.12:{each}" for each in ("1.2.0", "1.1.1"))},
    refused={
        "1.0": "it also takes the lock to generate an instant, by a provider that outlives the transaction",
        "0.15": "it writes tables of version 6",
    },
)

FORMATS: Final = {"delta": DELTA, "iceberg": ICEBERG, "hudi": HUDI}


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform with a Spark of its own, as its documentation states the releases."""

    name: str
    spark: str
    python: str
    java: str
    delta: str
    iceberg: str
    hudi: str
    install: str

    def accepted(self) -> tuple[tuple[str, str], ...]:
        """Return the formats and releases that the sinks accept."""
        stated = {"delta": self.delta, "iceberg": self.iceberg, "hudi": self.hudi}
        return tuple(
            (name, release)
            for name, release in stated.items()
            if minor(release) in FORMATS[name].tried(self.spark)
        )

    def row(self) -> str:
        """Return the platform's row in the table of the page."""
        works = dict(self.accepted())
        formats = [
            f"{release}, refused" if release and name not in works else release
            for name, release in (("delta", self.delta), ("iceberg", self.iceberg), ("hudi", self.hudi))
        ]
        cells = [self.name, self.spark, self.python, self.java, *formats, self.install]
        return f"| {' | '.join(each or '–' for each in cells)} |"


_GLUE: Final = "job parameter `--additional-python-modules`, the wheel's S3 URI"
_EMR: Final = "bootstrap action: `sudo python3.11 -m pip install <wheel>`; `spark.pyspark.python=python3.11`"
_EMR_8: Final = "EC2: bootstrap action, as above; Serverless: `spark.archives` with a packed environment"
_FABRIC: Final = "environment: the wheel as a custom library"
_DATABRICKS: Final = "cluster library: the wheel; access mode dedicated, since others have Spark Connect"
_DATAPROC: Final = "initialization action: `pip install <wheel>` on each node"
_ALIBABA: Final = "runtime environment, or `spark.archives` with a packed environment"
PLATFORMS: Final = (
    Platform("AWS Glue 5.0", "3.5.4", "3.11", "17", "3.3.0", "1.7.1", "0.15.0", _GLUE),
    Platform("AWS Glue 5.1", "3.5.6", "3.11", "17", "3.3.2", "1.10.0", "1.0.2", _GLUE),
    Platform("Amazon EMR 7.9", "3.5.5", "3.11", "", "3.3.0", "1.7.1", "0.15.0", _EMR),
    Platform("Amazon EMR 7.10", "3.5.5", "3.11", "", "3.3.0", "1.8.1", "0.15.0", _EMR),
    Platform("Amazon EMR 7.12", "3.5.6", "3.11", "", "3.3.2", "1.10.0", "1.0.2", _EMR),
    Platform("Amazon EMR Spark 8.0", "4.0.2", "3.11, 3.13", "", "4.0.0", "1.10.1", "1.1.0", _EMR_8),
    Platform("Amazon EMR Spark 8.1", "4.1.1", "3.11, 3.13", "", "4.2.0", "1.11.0", "1.1.1", _EMR_8),
    Platform("Databricks 16.4 LTS", "3.5.2", "", "", "", "", "", _DATABRICKS),
    Platform("Databricks 17.3 LTS", "4.0.0", "", "", "", "", "", _DATABRICKS),
    Platform("Dataproc 3.0 (preview)", "4.0.0", "3.11", "17", "", "", "", _DATAPROC),
    Platform("Microsoft Fabric 1.3", "3.5.5", "3.11", "11", "3.2", "", "", _FABRIC),
    Platform("Microsoft Fabric 2.0", "4.0.0", "3.12", "21", "4.0.0", "", "", _FABRIC),
    Platform("Alibaba Serverless Spark esr-4.7", "3.5.2", "", "17", "3.2.1", "1.9.2", "0.15", _ALIBABA),
    Platform("Alibaba Serverless Spark esr-5.1", "4.0.1", "", "17", "", "", "", _ALIBABA),
)


@dataclass(frozen=True, slots=True)
class FormatVersion:
    """A release of a table format in a Spark session."""

    version: str
    unhooked: str | None
    """Why its commit can't be put under the grant alone, or None if it can."""


def minor(version: str) -> str:
    """Return the minor release: `4.0` of 4.0.5."""
    return ".".join(version.split(".")[:2])


def release_of(coordinate: str) -> str:
    """Return the version of a Maven coordinate."""
    return coordinate.rpartition(":")[2]


def render() -> str:
    """Return the page `docs/releases.md`."""
    rows = "\n".join(
        f"| {spark} | {its.pyspark} | {its.python} | {its.hadoop} | {release_of(its.kafka)} | "
        + " | ".join(_versions(form.artifacts.get(spark, ())) for form in FORMATS.values())
        + " |"
        for spark, its in SPARK.items()
    )
    jars = "\n".join(
        f"| {form.name} | {spark} | `{jar}` |"
        for form in FORMATS.values()
        for spark in form.artifacts
        if (jar := form.jar(spark))
    )
    refused = "\n".join(
        f"| {form.name} {release} | {reason} |"
        for form in FORMATS.values()
        for release, reason in form.refused.items()
    )
    platforms = "\n".join(each.row() for each in PLATFORMS)
    return f"""# Releases

Made by `python -m lakewarden.spark_jobs.sinks.releases > docs/releases.md`, from the table that also gives the messages, the
jars of the tests and those of the demo. `make test-releases RELEASE={DEFAULT}` runs the tests of the gate, the sinks and the jobs
on a row; Spark {DEFAULT} is what `make test` runs. `.ci/run` covers 3.5 and {DEFAULT}, each with the
first release of a format in its row. On the others, tests of the sinks ran by hand, not all of them.

| Spark | PySpark | Python | `hadoop-aws` | Kafka source | {" | ".join(form.name for form in FORMATS.values())} |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

"–": the format has no release for this Spark. There, the sink refuses the session with an `UnsupportedSpark` that names the
releases of Spark which work. `PaimonSink` needs no jar, so it works with each. pip installs the newest PySpark: name that of
your format too, `pip install '.[spark]' 'pyspark==4.1.*'`.

| | Spark | `spark.jars.packages` |
| --- | --- | --- |
{jars}

A patch release of the same minor release is accepted. A sink refuses other releases, unless `untried_release=True` (Delta Lake,
Iceberg): it then compares the format's internals with those that it uses, and if they differ, each statement has the grant from
its start to its end. These were tried and are refused:

| release | why |
| --- | --- |
{refused}

## Platforms

What platforms bring, as their documentation stated it in November 2026. lakewarden was not run on them: their builds of Spark
and of the formats may differ from the published releases. `make test-platforms` runs the sinks with the published ones; so far it
was not run whole. "–": none, or not stated. "refused": by the sink; a platform's own jar can often be replaced by
`spark.jars.packages`.

| platform | Spark | Python | Java | {" | ".join(form.name for form in FORMATS.values())} | installation |
| --- | --- | --- | --- | --- | --- | --- | --- |
{platforms}

`pip wheel --no-deps .` in a clone makes the wheel. The driver needs it and its dependencies, and must reach Kafka. Executors need
nothing for Delta Lake, Iceberg and Hudi; for `PaimonSink`, and for `txn.executor_channel()`, they need the same as the driver.
"""


def _versions(coordinates: Collection[str]) -> str:
    return ", ".join(map(release_of, coordinates)) or "–"


if __name__ == "__main__":
    sys.stdout.write(render())
