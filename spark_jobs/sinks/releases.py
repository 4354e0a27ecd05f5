"""The releases of Spark and of the table formats that lakewarden is tested with: the only place that names them.

The sinks use classes of the formats that are no stable API. Another release may have them, and use them in another way. So a
sink accepts the releases of this table, unless the user says otherwise, and compares their hooks with those that it uses.

`docs/releases.md` is made of it (`python -m tests.pages`). CONTRIBUTING.md says how to add a release.
"""

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
    """Its Kafka source. PySpark has releases that Maven Central doesn't have (3.5.9, 4.0.5, 4.1.4, 4.3.0)."""


_KAFKA: Final = "org.apache.spark:spark-sql-kafka-0-10"
SPARK: Final = {
    "3.5": Spark("3.5.9", "3.11", "3.3.4", f"{_KAFKA}_2.12:3.5.7"),
    "4.0": Spark("4.0.5", "3.11 to 3.13", "3.4.1", f"{_KAFKA}_2.13:4.0.0"),
    "4.1": Spark("4.1.4", "3.11 to 3.14", "3.4.2", f"{_KAFKA}_2.13:4.1.1"),
    "4.2": Spark("4.2.1", "3.11 to 3.14", "3.5.0", f"{_KAFKA}_2.13:4.2.0"),
    "4.3": Spark("4.3.0", "3.11 to 3.14", "3.5.0", f"{_KAFKA}_2.13:4.2.0"),
}
DEFAULT: Final = "4.1"
"""The minor release of Spark that the lock file has."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The releases of a table format."""

    name: str
    artifacts: Mapping[str, tuple[str, ...]]
    """Maven coordinates that were tried, by the minor release of Spark. The first is the one that messages name."""
    of_patch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Likewise, for one patch release of Spark."""
    hooks: frozenset[str] = frozenset()
    """Internals of the format that the sink uses or implements."""
    may_lack: frozenset[str] = frozenset()
    """Hooks that only some releases have."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Minor releases that were tried and aren't accepted: the reasons, by `<release>` or `<release> on Spark <release>`."""

    def jar(self, spark: str) -> str | None:
        return next(iter(self.artifacts.get(minor(spark), ())), None)

    def jars(self, spark: str) -> tuple[str, ...]:
        """Return the coordinates that were tried on this release of Spark."""
        patch = ".".join(spark.replace("-", ".").split(".")[:3])  # EMR's is 4.1.1-amzn-0
        return (*self.artifacts.get(minor(spark), ()), *self.of_patch.get(patch, ()))

    def tried(self, spark: str) -> list[str]:
        """Return the minor releases of the format that were tried on this release of Spark."""
        return list(dict.fromkeys(minor(release_of(each)) for each in self.jars(spark)))

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
            dict.fromkeys(
                f"{minor(release_of(jar))} on Spark {spark}"
                for spark, jars in (*self.artifacts.items(), *self.of_patch.items())
                for jar in jars
            )
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
_OLD_CLASS: Final = "its ALTER TABLE needs a class that Spark has up to 4.1.1 (IgnoreCachedData)"
DELTA: Final = TableFormat(
    "Delta Lake",
    {
        "3.5": (f"{_DELTA}_2.12:3.3.2",),
        "4.0": (
            *(f"{_DELTA}_4.0_2.13:{each}" for each in ("4.2.0", "4.4.0", "4.3.1", "4.1.0")),
            f"{_DELTA}_2.13:4.0.0",
        ),
        "4.1": (f"{_DELTA}_4.1_2.13:4.4.0", f"{_DELTA}_4.1_2.13:4.3.1"),
        "4.2": (f"{_DELTA}_4.2_2.13:4.4.0",),
    },
    of_patch={"4.1.1": (f"{_DELTA}_4.1_2.13:4.2.0",)},
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
        "4.1 on Spark 4.1": _OLD_CLASS,
        "4.2 on Spark 4.1": _OLD_CLASS,
    },
)

_ICEBERG: Final = "org.apache.iceberg:iceberg-spark-runtime"
ICEBERG: Final = TableFormat(
    "Iceberg",
    {
        "3.5": tuple(
            f"{_ICEBERG}-3.5_2.12:{each}"
            for each in ("1.10.0", "1.12.0", "1.11.0", "1.9.2", "1.8.1", "1.7.1", "1.6.1")
        ),
        "4.0": tuple(f"{_ICEBERG}-4.0_2.13:{each}" for each in ("1.11.0", "1.10.0")),
        "4.1": tuple(f"{_ICEBERG}-4.1_2.13:{each}" for each in ("1.12.0", "1.11.0")),
    },
    hooks=frozenset({"org.apache.iceberg.spark.SparkTableCache"}),
)

_HUDI: Final = "org.apache.hudi:hudi-spark3.5-bundle_2.12"
HUDI: Final = TableFormat(
    "Hudi", {"3.5": tuple(f"{_HUDI}:{each}" for each in ("1.2.0", "1.1.1", "1.0.2", "0.15.0"))}
)

FORMATS: Final = {"delta": DELTA, "iceberg": ICEBERG, "hudi": HUDI}


def minor(version: str) -> str:
    """Return the minor release: `4.0` of 4.0.5."""
    return ".".join(version.split(".")[:2])


def release_of(coordinate: str) -> str:
    """Return the version of a Maven coordinate."""
    return coordinate.rpartition(":")[2]
