"""What drivers need to write a Hudi table on S3 with Hudi's own storage-based lock.

Only the lock's client for S3 is the tests' own (`tests/servers/hudi`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.hudi.options import STORAGE_LOCK
from tests.spark.formats import HADOOP_AWS, JARS
from tests.spark.sinks.cases import HUDI_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK = {
    "hoodie.write.lock.storage.validity.timeout.secs": "30",
    "hoodie.write.lock.storage.renew.interval.secs": "3",
}
PLAIN = {
    **HUDI_OPTIONS,
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "flight",
    "hoodie.datasource.write.partitionpath.field": "month",
    "hoodie.datasource.write.hive_style_partitioning": "true",
}
"""For a write that is alone."""
SHARED = {
    **PLAIN,
    **LOCK,
    "hoodie.write.lock.provider": STORAGE_LOCK,
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
"""For a writer that doesn't know of the gate, beside others."""


def session_on_s3(name: str, jars: str, endpoint: str, **settings: Any) -> SparkSession:
    """`jars`: of the lock's client. The credentials are those of the environment."""
    settings |= settings_on_s3(jars, endpoint)
    return spark_session(name, master="local[2,4]", memory="1g", **settings)


def settings_on_s3(jars: str, endpoint: str) -> dict[str, str]:
    """The settings of such a session."""
    s3a = {
        "endpoint": endpoint,
        "endpoint.region": os.environ["AWS_DEFAULT_REGION"],
        "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "directory.marker.retention": "keep",
    }
    return {
        **{f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()},
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.jars": jars,
        "spark.jars.packages": f"{JARS['hudi']},{HADOOP_AWS}",
    }


def filesystem_on_s3(endpoint: str) -> Any:
    """With the credentials of the environment."""
    return fs.S3FileSystem(
        endpoint_override=endpoint.partition("//")[2],
        scheme="http",
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["AWS_DEFAULT_REGION"],
    )
