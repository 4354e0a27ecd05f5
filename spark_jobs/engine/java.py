"""Classes and exceptions of Java, as py4j and PySpark show them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TEXT = 300
"""Characters of a Java exception's text in a message."""

_DEFINING = threading.Lock()
"""A class can't be defined twice, and several queries start at the same time."""


def gateway_of(spark: SparkSession) -> Any:
    """Return py4j's gateway to the JVM of the driver."""
    return spark.sparkContext._gateway


def accept_callbacks(gateway: Any) -> None:
    """Let the JVM behind this gateway call objects of this Python process."""
    from pyspark.java_gateway import ensure_callback_server_started

    start: Any = ensure_callback_server_started  # it has no annotations
    start(gateway)


def threads_are_pinned() -> bool:
    """Return whether each Python thread has a thread of the JVM to itself, also in a callback."""
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


def java_type(spark: SparkSession, name: str) -> Any:
    """Return py4j's view of a class, with its constructors and static members. An inner class is `Outer$Inner`.

    `spark._jvm.org.apache.…` asks the JVM for each package whether it is a class, and each time Java searches all jars.
    """
    from py4j.java_gateway import JavaClass

    return JavaClass(name, gateway_of(spark)._gateway_client)


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a `java.lang.Class` of the driver, from the packages of the session too. Raise if there is none."""
    loader = java_type(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    return java_type(spark, "java.lang.Class").forName(name, True, loader)  # noqa: FBT003 - Java has no keyword arguments


def defined_class(
    spark: SparkSession,
    name: str,
    neighbour: str,
    folder: Path,
    inner: Sequence[str] = (),
    *,
    version: int | None = None,
) -> Any:
    """Return py4j's view of a class of this package, whose class files are in `folder`.

    If the class path doesn't have it, it is defined in the class loader of `neighbour`, a class of the same Java package, by
    `MethodHandles.Lookup.defineClass`. So a job needs no jar of lakewarden. That needs Java 9. `inner` are its inner classes,
    each before those that use it: the class loader finds them nowhere else. `version`: its `VERSION`. Raises
    `UnsupportedSpark` if the class path has another one.
    """
    with _DEFINING:
        for each in (*(f"{name}${simple}" for simple in inner), name):
            try:
                java_class(spark, each)
            except Exception as error:
                if "ClassNotFoundException" not in str(error):
                    raise
                handles = java_type(spark, "java.lang.invoke.MethodHandles")
                lookup = handles.privateLookupIn(java_class(spark, neighbour), handles.lookup())
                lookup.defineClass(bytearray((folder / f"{each.rpartition('.')[2]}.class").read_bytes()))
                java_class(spark, each)
    defined = java_type(spark, name)
    if version is not None and version != defined.VERSION:
        raise UnsupportedSpark(
            f"the class path has another {name}, of version {defined.VERSION}; this lakewarden needs version {version}: remove "
            "that jar, the class comes with the Python package"
        )
    return defined


def java_map(spark: SparkSession, content: Mapping[str, str]) -> Any:
    """Return a `java.util.HashMap`."""
    made = java_type(spark, "java.util.HashMap")()
    for key, value in content.items():
        made.put(key, value)
    return made


def call_static(spark: SparkSession, name: str, method: str) -> Any:
    """Call a static method without arguments. py4j can't call one that is overloaded by a method of the object."""
    gateway: Any = spark.sparkContext._gateway
    found = java_class(spark, name).getMethod(method, gateway.new_array(gateway.jvm.java.lang.Class, 0))
    return found.invoke(None, gateway.new_array(gateway.jvm.java.lang.Object, 0))


def elements(collection: Any) -> Iterator[Any]:
    """Yield the elements of a Java collection or iterable.

    A loop over the Java object itself ends with an exception of the JVM, which PySpark translates in a dozen calls.
    """
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def java_exception(error: BaseException) -> Any | None:
    """Return the Java exception that an error carries, or None. PySpark and py4j keep it under different names."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def java_text(error: BaseException) -> str:
    """Return an error in one short line. The text of a Java error goes on with its stack."""
    java = java_exception(error)
    text = str(error) if java is None else f"{java.getClass().getSimpleName()}: {java.getMessage()}"
    return " ".join(text.split())[:MAX_TEXT]


def java_causes(error: BaseException) -> Iterator[Any]:
    """Yield the Java exception that an error carries, and its causes."""
    java = java_exception(error)
    while java is not None:
        yield java
        java = java.getCause()


def is_instance(java: Any, name: str) -> bool:
    """Return whether a Java object is of a class whose name ends like this, or of a subclass."""
    kind = java.getClass()
    while kind is not None:
        if str(kind.getName()).endswith(name):
            return True
        kind = kind.getSuperclass()
    return False
