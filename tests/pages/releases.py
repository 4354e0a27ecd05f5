"""Which releases work together, from the table of the sinks, and the platforms that bring a Spark of their own."""

from dataclasses import dataclass
from typing import Final

from lakewarden.spark_jobs.sinks.releases import DEFAULT, FORMATS, SPARK, TableFormat, minor, release_of


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
        works = dict(self.accepted())
        formats = [
            f"{release}, refused" if release and name not in works else release
            for name, release in (("delta", self.delta), ("iceberg", self.iceberg), ("hudi", self.hudi))
        ]
        spark = self.spark if minor(self.spark) in SPARK else f"{self.spark}, refused"
        cells = [self.name, spark, self.python, self.java, *formats, self.install]
        return f"| {' | '.join(each or '–' for each in cells)} |"


_GLUE: Final = "job parameter `--additional-python-modules`, the wheel's S3 URI"
_EMR: Final = "bootstrap action: `sudo python3.11 -m pip install <wheel>`; `spark.pyspark.python=python3.11`"
_EMR_8: Final = "EC2: bootstrap action, as above; Serverless: `spark.archives` with a packed environment"
_SYNAPSE: Final = "workspace package: the wheel"
_FABRIC: Final = "environment: the wheel as a custom library"
_DATABRICKS: Final = "cluster library: the wheel; access mode dedicated, since others have Spark Connect"
_DATAPROC: Final = "initialization action: `pip install <wheel>` on each node"
_CONNECT: Final = "[`HudiSink` is refused](writers.md#on-spark-connect)"
_WHOLE: Final = "functions and `PaimonSink`; Delta by [whole statements](recipes.md#a-merge-of-your-own)"
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
    Platform("Databricks 17.3 LTS, standard access mode", "4.0.0", "", "", "", "", "", _WHOLE),
    Platform("Dataproc 2.3", "3.5.3", "", "", "3.2", "1.6.1", "0.15.0", _DATAPROC),
    Platform("Amazon EMR Spark 8.1, Spark Connect", "4.1.1", "3.11, 3.13", "", "", "", "", _CONNECT),
    Platform("Dataproc 3.0, Spark Connect", "4.1.2", "3.12", "21", "", "", "", _CONNECT),
    Platform("Dataproc 3.0", "4.1.2", "3.12", "21", "4.2.0", "1.11.0", "1.2.0", _DATAPROC),
    Platform("Azure HDInsight 5.1", "3.3", "", "", "", "", "", ""),
    Platform("Azure Synapse, runtime for Spark 3.5", "3.5", "3.11", "17", "3.2", "", "", _SYNAPSE),
    Platform("Microsoft Fabric 1.3", "3.5.5", "3.11", "11", "3.2", "", "", _FABRIC),
    Platform("Microsoft Fabric 2.0", "4.1.1", "3.12", "21", "4.2.0", "", "", _FABRIC),
    Platform("Alibaba Serverless Spark esr-4.7", "3.5.2", "", "17", "3.2.1", "1.9.2", "0.15.0", _ALIBABA),
    Platform("Alibaba Serverless Spark esr-5.1", "4.0.1", "", "17", "", "", "", _ALIBABA),
)


def render() -> str:
    rows = "\n".join(
        f"| {spark} | {its.pyspark} | {its.python} | {its.hadoop} | {release_of(its.kafka)} | "
        + " | ".join(_versions(form, spark) for form in FORMATS.values())
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

For authors of jobs. Here you find which releases work together. Made by `python -m tests.pages`,
from the table that also gives the messages and the jars. `make test-releases RELEASE={DEFAULT}` runs the tests of the gate, the
sinks and the jobs on a row; Spark {DEFAULT} is what `make test` runs. `.ci/run` covers 3.5 and {DEFAULT}, each with the first
release of a format in its row, on Python 3.11.

| Spark | PySpark | Python | `hadoop-aws` | Kafka source | {" | ".join(form.name for form in FORMATS.values())} |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

"–": the format has no release for this Spark. There, the sink refuses the session with an `UnsupportedSpark` that names the
releases of Spark which work. `PaimonSink` needs no jar, so it works with each, but not on Python 3.14: pypaimon demands
pyarrow below 20, which has no packages for it. The rest was tried on 3.14 with Spark 4.1. pip installs the newest PySpark:
name that of your format too, `pip install '.[spark]' 'pyspark=={DEFAULT}.*'`.

| | Spark | `spark.jars.packages` |
| --- | --- | --- |
{jars}

A patch release of the same minor release is accepted. A sink refuses other releases, unless `untried_release=True` (Delta Lake,
Iceberg). Then it compares the format's internals with those that it uses; if they differ, each statement has the grant from its
start to its end. Tried and refused:

| release | why |
| --- | --- |
{refused}

## Platforms

What platforms bring, as their documentation stated it in November 2026. lakewarden was not run on them: their builds may differ
from the published releases. `make test-platforms` runs the sinks with the published ones.
"–": none, or not stated. "refused": by the sink; a platform's own jar can often be replaced by
`spark.jars.packages`.

| platform | Spark | Python | Java | {" | ".join(form.name for form in FORMATS.values())} | installation |
| --- | --- | --- | --- | --- | --- | --- | --- |
{platforms}

[On a cluster](writers.md#on-a-cluster) says what executors need.
"""


def _versions(form: TableFormat, spark: str) -> str:
    tried = [*map(release_of, form.jars(spark))]
    tried += [
        f"{release_of(each)} (only {patch})"
        for patch, jars in form.of_patch.items()
        if minor(patch) == spark
        for each in jars
    ]
    return ", ".join(tried) or "–"
