"""The Spark schema of an event, derived from its pydantic model.

A new field of an event becomes a new column without a change here. All columns are nullable, because a record of another
version may lack a field, and the query must not stop for it. Types without an equal in Spark are mapped: times with a zone to
instants, literals to strings, tuples to arrays. A type that has no mapping raises at the start of the query.
"""

from __future__ import annotations

import types
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def struct_of(model: type[BaseModel]) -> StructType:
    """Return the model's fields, in their order, as Spark columns."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(name, _type_of(field.annotation, f"{model.__name__}.{name}"), nullable=True)
            for name, field in model.model_fields.items()
        ]
    )


def _type_of(annotation: Any, where: str) -> DataType:
    from pyspark.sql import types as spark

    simple: dict[Any, DataType] = {
        str: spark.StringType(),
        int: spark.LongType(),
        float: spark.DoubleType(),
        bool: spark.BooleanType(),
        datetime: spark.TimestampType(),
        AwareDatetime: spark.TimestampType(),
    }
    if annotation in simple:
        return simple[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return struct_of(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_of(arguments[0], where)
    if origin is Literal:
        return _only_one({_type_of(type(value), where) for value in arguments}, annotation, where)
    if origin in {Union, types.UnionType}:
        members = {_type_of(member, where) for member in arguments if member is not type(None)}
        return _only_one(members, annotation, where)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return spark.ArrayType(_type_of(arguments[0], where))
    if origin in {list, frozenset}:
        return spark.ArrayType(_type_of(arguments[0], where))
    raise TypeError(f"no spark type for {where}: {annotation!r}; add a mapping to {__name__}")


def _only_one(found: set[DataType], annotation: Any, where: str) -> DataType:
    if len(found) != 1:
        raise TypeError(f"more than one spark type for {where}: {annotation!r}; a column needs exactly one")
    return found.pop()
