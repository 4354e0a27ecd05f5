"""Which PySpark the demo of each format needs, and where its Iceberg table is."""

from __future__ import annotations

import pytest

from lakewarden.spark_jobs import UnsupportedSpark
from lakewarden.spark_jobs.jobs.demo_formats import ON_SPARK, iceberg_name, jar_for
from lakewarden.spark_jobs.sinks.releases import FORMATS


def test_the_jar_is_that_of_the_environments_pyspark() -> None:
    for name, form in ON_SPARK.items():
        for spark, tried in FORMATS[name].artifacts.items():
            assert jar_for(form, f"{spark}.9") == tried[0]


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
