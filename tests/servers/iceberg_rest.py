"""A real REST catalog of Iceberg for tests: the server of Iceberg's own compatibility kit, on a catalog in SQLite.

| part | origin |
| --- | --- |
| `RESTCatalogServer` | `iceberg-open-api`, classifier `test-fixtures`; it answers by the adapter in the tests of `iceberg-core` |
| Iceberg, its access to S3, SQLite, Jetty | Maven Central |
| Hadoop's configuration class | the jars of pyspark |

The jars are kept in the cache, in a folder per version.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lakewarden.agent.embedded.jdk import find_java
from lakewarden.agent.embedded.kafka import free_port
from tests.servers.jars import jars
from tests.servers.program import NoServerError, spawn, stop

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
    log = folder / "rest-catalog.log"
    process = spawn([str(find_java()), *_JVM, "-cp", path, _MAIN], environment, log)
    try:
        uri = f"http://127.0.0.1:{port}"
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
                raise NoServerError(
                    f"Iceberg's REST catalog did not start: {log.read_text()[-2000:]}"
                ) from error
            time.sleep(0.2)
