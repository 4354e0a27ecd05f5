"""Real REST catalogs of Iceberg for tests: the server of Iceberg's own compatibility kit, on a catalog in SQLite, and Nessie.

| part | origin |
| --- | --- |
| `RESTCatalogServer` | `iceberg-open-api`, classifier `test-fixtures`; it answers by the adapter in the tests of `iceberg-core` |
| Iceberg, its access to S3, SQLite, Jetty | Maven Central |
| Hadoop's configuration class | the jars of pyspark |

Nessie is its own program, `nessie-quarkus`. It lists the newest snapshot of a table only, without a parent, and signs the
clients' requests to S3. The jars are kept in the cache, in a folder per version.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lakewarden.agent.embedded.jdk import find_java, version_of
from lakewarden.agent.embedded.kafka import free_port
from tests.servers.jars import jars
from tests.servers.program import NoServerError, spawn, stop
from tests.servers.s3 import S3Server

ICEBERG_VERSION: Final = "1.10.0"
SQLITE: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
_ALONE: Final = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG_VERSION}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}:tests",
    f"org.apache.iceberg:iceberg-aws:{ICEBERG_VERSION}",
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}",
    "dev.failsafe:failsafe:3.3.2",
    SQLITE,
)
"""Without their dependencies: those of the tests aren't needed, and the bundle contains the SDK."""
_WITH_DEPENDENCIES: Final = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
)
_MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS: Final = 120


NESSIE: Final = "org.projectnessie.nessie:nessie-quarkus:0.99.0:runner"
_NESSIE_JAVA: Final = 21


@contextmanager
def running_rest_catalog(folder: Path, properties: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield its URI. `properties` are those of the catalog behind it, whose tables are named in `folder`."""
    import pyspark

    port = free_port()
    catalog = {"uri": f"jdbc:sqlite:{folder / 'rest-catalog.db'}", "rest.port": str(port), **properties}
    environment = {f"CATALOG_{_variable(key)}": value for key, value in catalog.items()}
    rest = jars(
        f"iceberg-rest-{ICEBERG_VERSION}",
        alone=_ALONE,
        with_dependencies=_WITH_DEPENDENCIES,
        left_out=["org.slf4j"],
    )
    libraries = (rest, Path(pyspark.__file__).parent / "jars")
    path = ":".join(f"{library}/*" for library in libraries)
    with _running(
        [str(find_java()), *_JVM, "-cp", path, _MAIN],
        environment,
        folder / "rest-catalog.log",
        f"http://127.0.0.1:{port}",
    ) as uri:
        yield uri


@contextmanager
def running_nessie(folder: Path, bucket: str, s3: S3Server) -> Iterator[str]:
    """Run Nessie with the warehouse `warehouse` in the bucket, its branches in memory. Yields the URI of its REST catalog."""
    (jar,) = jars("nessie-0.99.0", alone=[NESSIE], with_dependencies=[], left_out=[]).iterdir()
    port, store = free_port(), "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"s3://{bucket}/warehouse",
        f"{store}.endpoint": s3.endpoint,
        f"{store}.region": s3.region,
        f"{store}.path-style-access": "true",
        f"{store}.auth-type": "STATIC",
        f"{store}.access-key": "urn:nessie-secret:quarkus:bucket",
        "bucket.name": s3.access_key,
        "bucket.secret": s3.secret_key,
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    command = [str(newest_java(_NESSIE_JAVA)), *_JVM[1:], "-Xmx512m", *options, "-jar", str(jar)]
    with _running(command, {}, folder / "nessie.log", f"http://127.0.0.1:{port}/iceberg") as uri:
        yield uri


def newest_java(at_least: int) -> Path:
    """Return the `java` that runs programs of that version: the usual one, or another of this machine."""
    homes = [
        path
        for folder in ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines")
        for path in Path(folder).glob("*")
    ]
    for java in (find_java(), *(path / "bin" / "java" for path in homes)):
        if java.is_file() and (version_of(str(java)) or 0) >= at_least:
            return java
    raise NoServerError(f"Nessie needs Java {at_least} or newer: install one, or set JAVA_HOME to it")


@contextmanager
def _running(command: list[str], environment: Mapping[str, str], log: Path, uri: str) -> Iterator[str]:
    process = spawn(command, environment, log)
    try:
        _wait_until_it_answers(uri, process, log)
        yield uri
    finally:
        stop(process)


def _variable(key: str) -> str:
    return key.replace("-", "__").replace(".", "_").upper()


def _wait_until_it_answers(uri: str, process: Any, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{uri}/v1/config"):  # noqa: S310 - of this machine
                return
        except (urllib.error.URLError, ConnectionError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoServerError(f"the REST catalog did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.2)
