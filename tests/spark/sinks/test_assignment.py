"""Store assignment by Spark's own resolver: what goes where, what is refused, and what an error names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from lakewarden.spark_jobs.sinks.assignment import assigned, naming_values

pytestmark = pytest.mark.real

TABLE = "s3://lake/air base"
ADDRESS = StructType([StructField("city", StringType()), StructField("zip", StringType(), nullable=False)])
CUSTOMERS = StructType([StructField("id", IntegerType()), StructField("addr", ADDRESS)])


@pytest.fixture(params=["true", "false"], ids=["ansi", "not-ansi"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own. Store assignment doesn't depend on `spark.sql.ansi.enabled`."""
    own = spark.newSession()
    own.conf.set("spark.sql.ansi.enabled", request.param)
    yield own
    spark.sql("SELECT 1")  # makes the suite's session the active one again


def one(name: str, kind: DataType, *, nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable=nullable)])


def test_columns_and_nested_fields_go_by_name(session: SparkSession) -> None:
    batch = session.sql("SELECT named_struct('zip', '10115', 'city', 'Berlin') AS addr, 1 AS ID")

    rows = assigned(batch, CUSTOMERS, TABLE)

    assert rows.columns == ["id", "addr"]
    assert rows.head() == (1, ("Berlin", "10115"))


def test_a_batch_that_fits_is_not_projected(session: SparkSession) -> None:
    batch = session.sql("SELECT 1 AS id, named_struct('city', 'Berlin', 'zip', '10115') AS addr")

    assert assigned(batch, CUSTOMERS, TABLE) is batch


def test_columns_that_are_missing_or_for_conditions_only(session: SparkSession) -> None:
    batch = session.sql("SELECT true AS gone, 7L AS ID")

    rows = assigned(batch, CUSTOMERS, TABLE, partial=True, others=["gone"])

    assert rows.dtypes == [("id", "int"), ("gone", "boolean")]
    with pytest.raises(ValueError, match=r"no columns \['gone'\].*table=s3://lake/air base"):
        assigned(batch, CUSTOMERS, TABLE, partial=True)
    with pytest.raises(ValueError, match="Cannot find data for the output column `addr`"):
        assigned(batch, CUSTOMERS, TABLE, others=["gone"])


@pytest.mark.parametrize(
    ("batch", "columns", "said"),
    [
        ("SELECT 'abc' AS id", one("id", IntegerType()), 'cast `id` "STRING" to "INT"'),
        ("SELECT 1 AS id, 2 AS ID", one("id", IntegerType()), r"several columns for one of the table's: \['id', 'ID'\]"),
        ("SELECT named_struct('town', 'x', 'zip', '1') AS addr", one("addr", ADDRESS), "output column `addr`.`city`"),
    ],
)  # fmt: skip
def test_a_type_that_does_not_fit_is_refused_before_a_row_is_read(
    session: SparkSession, batch: str, columns: StructType, said: str
) -> None:
    with pytest.raises(ValueError, match=f"{said}.*table={TABLE}"):
        assigned(session.sql(batch), columns, TABLE)


def test_the_legacy_policy_is_refused(session: SparkSession) -> None:
    session.conf.set("spark.sql.storeAssignmentPolicy", "LEGACY")

    with pytest.raises(ValueError, match="set it to ANSI or STRICT"):
        assigned(session.sql("SELECT 'abc' AS id"), one("id", IntegerType()), TABLE)


@pytest.mark.parametrize(
    ("batch", "columns", "said"),
    [
        (
            "SELECT if(id = 77, 3000000000, id) AS id FROM range(0, 100, 1, 3)",
            one("id", IntegerType()),
            r"column 'id' of the batch has type bigint, and its value \{\"id\":3000000000\} can't be stored as int; .*OVERFLOW",
        ),
        (
            "SELECT if(id = 3, NULL, id) AS id FROM range(9)",
            one("id", LongType(), nullable=False),
            r"its value \{\"id\":null\} can't be stored as bigint NOT NULL",
        ),
        ("SELECT repeat('a', id) AS v FROM range(5)", one("v", VarcharType(3)), r"\{\"v\":\"aaaa\"\} .* varchar\(3\)"),
        (
            "SELECT named_struct('zip', if(id = 3, NULL, 'x'), 'city', 'Berlin') AS addr, id FROM range(5)",
            CUSTOMERS,
            r"\{\"addr\":\{\"zip\":null,\"city\":\"Berlin\"\}\} can't be stored as struct<city:string,zip:string>",
        ),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_an_error_that_names_it(
    session: SparkSession, batch: str, columns: StructType, said: str
) -> None:
    rows = session.sql(batch)

    with pytest.raises(ValueError, match=said), naming_values(rows, columns, TABLE):
        assigned(rows, columns, TABLE).collect()


def test_a_text_that_python_has_not_is_an_error_that_names_its_column(session: SparkSession) -> None:
    rows = session.sql("SELECT 'a' AS a, CAST(X'ff61' AS string) AS `b c`")

    with (
        pytest.raises(
            ValueError, match=f"column 'b c' has a text that is not UTF-8, X'FF61'.*; table={TABLE}"
        ),
        naming_values(rows, rows.schema, TABLE),
    ):
        rows.mapInArrow(lambda each: (batch for batch in each if batch.to_pylist()), rows.schema).collect()
