"""Which PySpark the demo of each format needs, and where its Iceberg table is."""

from __future__ import annotations

import pytest

from lakewarden.spark_jobs import UnsupportedSpark
from lakewarden.spark_jobs.jobs.demo_formats import ON_SPARK, iceberg_name, jar_for


def test_the_jar_is_that_of_the_environments_pyspark() -> None:
    assert jar_for(ON_SPARK["hudi"], "3.5.9").startswith("org.apache.hudi:hudi-spark3.5-bundle_2.12:")
    assert jar_for(ON_SPARK["delta"], "4.0.1").startswith("io.delta:delta-spark_2.13:4.0")
    assert jar_for(ON_SPARK["iceberg"], "4.0.1").startswith(
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:"
    )


@pytest.mark.parametrize(
    ("name", "here", "needed"), [("hudi", "4.0.1", "3.5"), ("delta", "4.9.0", "3.5, 4.0")]
)
def test_another_pyspark_is_an_error_that_names_the_make_target(name: str, here: str, needed: str) -> None:
    with pytest.raises(UnsupportedSpark) as raised:
        jar_for(ON_SPARK[name], here)

    text = str(raised.value)
    assert f"needs PySpark {needed}" in text
    assert f", and this environment has {here}" in text
    assert f"make demo FORMAT={name}" in text


def test_an_iceberg_table_is_named_by_the_end_of_its_uri() -> None:
    assert iceberg_name("file:///tmp/w/demo/flights_auto") == "lake.demo.flights_auto"
