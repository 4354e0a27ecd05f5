"""The table of releases: what is made from it, and what the sinks refuse by it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lakewarden.spark_jobs import UnsupportedSpark
from lakewarden.spark_jobs.jobs.spark_session import kafka_package
from lakewarden.spark_jobs.sinks.releases import (
    DEFAULT,
    DELTA,
    FORMATS,
    HUDI,
    ICEBERG,
    SPARK,
    TableFormat,
    release_of,
)
from tests.servers import iceberg_rest

ROOT = Path(__file__).parents[4]
COORDINATE = re.compile(
    r"(?:io\.delta:delta-spark|org\.apache\.iceberg:iceberg-spark-runtime|org\.apache\.hudi)[\w.:-]*\d"
)


def test_the_documentation_names_jars_and_the_pyspark_of_the_default_or_hudis() -> None:
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*.md") if page.stem != "releases")

    assert {*COORDINATE.findall(pages)} == {form.jar(DEFAULT) or form.jar("3.5") for form in FORMATS.values()}
    assert {*re.findall(r"'pyspark==(.+?)\.\*'", pages)} == {DEFAULT, "3.5"}


def test_the_rest_server_is_of_a_release_of_the_default() -> None:
    """The agent's programs can't import the table."""
    assert iceberg_rest.VERSION in map(release_of, ICEBERG.jars(DEFAULT))


def test_each_pyspark_of_the_table_is_in_the_lock_file_or_pinned_for_make_test_releases() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    [locked] = [each["version"] for each in packages if each["name"] == "pyspark"]
    pinned = re.findall(
        r"^pyspark==(\S+) --hash=sha256:", (ROOT / "tests/spark/pyspark.txt").read_text(), re.MULTILINE
    )

    assert locked == SPARK[DEFAULT].pyspark
    assert f"\nLOCKED := {DEFAULT}\n" in (ROOT / "Makefile").read_text()
    assert {*pinned, locked} == {each.pyspark for each in SPARK.values()} | DELTA.of_patch.keys()


@pytest.mark.parametrize("spark", SPARK)
def test_each_jar_is_of_the_scala_of_its_spark(spark: str) -> None:
    scala = "_2.12:" if spark == "3.5" else "_2.13:"
    jars = [
        kafka_package(f"{spark}.9"),
        *(each for form in FORMATS.values() for each in form.artifacts.get(spark, ())),
    ]

    assert [each for each in jars if scala not in each] == []


@pytest.mark.parametrize(
    ("form", "version", "spark", "message"),
    [
        (
            DELTA,
            "9.9.0",
            DEFAULT,
            f"Delta Lake 9.9.0 on Spark {DEFAULT} is not accepted by this sink, only .*untried_release",
        ),
        (DELTA, "4.2.0", "4.1.4", r"IgnoreCachedData\)\), only .* on Spark 4\.2, 4\.2 on Spark 4\.1\.1;"),
        (DELTA, "3.2.1", "3.5.9", r"isn't called after the commit\), only"),
        (
            HUDI,
            "0.14.1",
            "3.5.9",
            r"only 1\.2 on Spark 3\.5, 1\.1 on Spark 3\.5, 1\.0 on Spark 3\.5, 0\.15 on Spark 3\.5; use one of them$",
        ),
    ],
)
def test_a_release_that_was_not_tried_is_refused(
    form: TableFormat, version: str, spark: str, message: str
) -> None:
    with pytest.raises(UnsupportedSpark, match=message):
        form.require(version, spark, untried=None if form is HUDI else False)


def test_a_release_for_one_patch_release_of_spark_is_accepted_there() -> None:
    DELTA.require("4.2.0-amzn-0", "4.1.1-amzn-0", untried=False)


def test_a_format_without_a_release_for_this_spark_names_the_sparks_that_have_one() -> None:
    assert "no release of it was tried on Spark 4.9.0: use Spark 3.5" in str(HUDI.missing("4.9.0"))
    assert str(HUDI.missing("3.5.9")).endswith(
        "start Spark with spark.jars.packages=" + HUDI.artifacts["3.5"][0]
    )


def test_the_kafka_source_of_an_unknown_spark_is_refused() -> None:
    with pytest.raises(
        UnsupportedSpark, match=r"no Kafka source is known for PySpark 4\.9\.0: install PySpark 3\.5 or"
    ):
        kafka_package("4.9.0")
