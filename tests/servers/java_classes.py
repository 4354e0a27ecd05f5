"""Compiles the Java classes of the sinks into the class files that the wheel contains.

    python -m tests.servers.java_classes

They are byte code of Java 8, or of Spark Connect's Java 17, without debug information, so that the same source gives the same
bytes. What they are compiled against comes from Maven Central, and Hadoop and Spark from pyspark's jars.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from lakewarden.agent.embedded.jars import Library, downloaded
from lakewarden.spark_jobs.sinks.connect import jar
from lakewarden.spark_jobs.sinks.delta import fence
from lakewarden.spark_jobs.sinks.hudi import provider
from lakewarden.spark_jobs.sinks.iceberg import release
from lakewarden.spark_jobs.sinks.releases import DELTA, ICEBERG, SPARK, TableFormat, minor
from tests.servers.hudi import hudi_jars
from tests.servers.program import compile_java

HADOOP_VERSION: Final = SPARK[minor(pyspark.__version__)].hadoop
_DELTA: Final = "io.delta:delta-storage:4.0.0"
_SDK_VERSION: Final = {"3.4.1": "2.25.53", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""By Hadoop's. Hadoop 3.4.1 is built with 2.24.6, of which Maven Central has no transfer manager of its own."""
_SDK: Final = ("software.amazon.awssdk:s3", "software.amazon.awssdk:s3-transfer-manager")
_ACCELERATOR: Final = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"
"""S3A's input stream from Hadoop 3.5 on."""


def s3a_jars() -> Path:
    """The folder with Hadoop's S3A and the part of the SDK that it needs (10 MB, where Hadoop's bundle has 500)."""
    return downloaded(
        Library(
            f"Hadoop's S3A {HADOOP_VERSION}",
            f"s3a-{HADOOP_VERSION}/jars",
            alone=[
                f"org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}",
                *([_ACCELERATOR] if HADOOP_VERSION >= "3.5" else []),
            ],
            with_dependencies=[f"{each}:{_SDK_VERSION[HADOOP_VERSION]}" for each in _SDK],
            left_out=("io.netty", "org.slf4j"),
        )
    )


def _pyspark_jars(*names: str) -> list[Path]:
    folder = Path(pyspark.__file__).parent / "jars"
    return [jar for name in names for jar in folder.glob(f"{name}[-_]*.jar")]


def _delta_path() -> list[Path]:
    storage = downloaded(Library("Delta's storage", "delta-storage-4.0.0/jars", [_DELTA]))
    hadoop = _pyspark_jars("hadoop-client")
    return [*storage.glob("*.jar"), *s3a_jars().glob("*.jar"), *hadoop]


def _of_spark(form: TableFormat, *names: str) -> list[Path]:
    """The jar of a format for this PySpark, and these of PySpark's."""
    runtime = form.jar(pyspark.__version__)
    assert runtime is not None, f"compile on a PySpark for which {form.name} has a release"
    _, artifact, version = runtime.split(":")
    jars = downloaded(Library(runtime, f"{artifact}-{version}/jars", [runtime]))
    return [*jars.glob("*.jar"), *_pyspark_jars("spark-catalyst", "spark-sql-api", "scala-library", *names)]


def _connect_path() -> list[Path]:
    delta = _of_spark(DELTA, "spark-sql", "spark-core", "spark-unsafe", "spark-common-utils", "kryo-shaded")
    return [*dict.fromkeys([*delta, *_of_spark(ICEBERG)])]


@dataclass(frozen=True, slots=True)
class JavaClasses:
    """The Java classes of one sink."""

    sources: Path
    classes: Path
    class_path: Callable[[], list[Path]]
    java: str = "8"
    beside: Path | None = None
    """Sources of another sink that these use."""

    def compiled(self) -> dict[str, bytes]:
        """Compile the sources. Return the class files by name."""
        with tempfile.TemporaryDirectory() as folder:
            others = [] if self.beside is None else sorted(self.beside.glob("*.java"))
            sources, jars = sorted(self.sources.glob("*.java")), sorted(self.class_path())
            options = ("--release", self.java, "-g:none", "-Xlint:-options")
            compile_java([*sources, *others], jars, Path(folder), *options)
            foreign = {f"{path.stem}.class" for path in others}
            found = {path.name: path.read_bytes() for path in Path(folder).rglob("*.class")}
            return {name: content for name, content in found.items() if name not in foreign}

    def renew(self) -> None:
        """Replace the class files of the wheel."""
        new = self.compiled()
        self.classes.mkdir(exist_ok=True)
        for stale in self.classes.glob("*.class"):
            stale.unlink()
        for name, content in new.items():
            (self.classes / name).write_bytes(content)


OF_SINKS: Final = {
    "connect": JavaClasses(jar.SOURCES, jar.CLASSES, _connect_path, "17", release.SOURCES),
    "delta": JavaClasses(fence.SOURCES, fence.CLASSES, _delta_path),
    "hudi": JavaClasses(provider.SOURCES, provider.CLASSES, lambda: list(hudi_jars().glob("*.jar"))),
    "iceberg": JavaClasses(release.SOURCES, release.CLASSES, lambda: _of_spark(ICEBERG, "spark-unsafe")),
}

if __name__ == "__main__":
    for each in OF_SINKS.values():
        each.renew()
