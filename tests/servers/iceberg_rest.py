"""Iceberg's REST catalog as a process, for the demo and the tests: the server of Iceberg's own compatibility kit, on SQLite.

    python -m tests.servers.iceberg_rest --data folder --warehouse file:///folder

It downloads its jars the first time, and prints `{"ready": true, "uri": …}` when it answers. Hadoop's classes are pyspark's.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lakewarden.agent.bound_child import bound
from lakewarden.agent.embedded.jars import JarsUnavailable, Library, downloaded
from lakewarden.agent.embedded.jdk import JdkMissing, find_java
from lakewarden.agent.embedded.kafka import free_port

VERSION: Final = "1.11.0"
"""A release that the sinks were tried with. Maven Central has the newest one, 1.12.0, without its server."""
SQLITE: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
_JETTY: Final = "12.1.5"
_JARS: Final = Library(
    f"Iceberg's REST server {VERSION}",
    f"iceberg-rest-server-{VERSION}",
    (
        f"org.apache.iceberg:iceberg-core:{VERSION}",
        f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
        f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY}",
        f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY}",
    ),
    (
        # Without the dependencies of the tests.
        f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
        SQLITE,
    ),
    ("org.slf4j",),
)
_MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"
JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS: Final = 120.0


def pyspark_jars() -> Path:
    """The folder of the jars of pyspark. It isn't imported. Raises `JarsUnavailable`."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise JarsUnavailable("Iceberg's REST server needs pyspark in this environment: pip install pyspark")
    return Path(found.origin).parent / "jars"


def server(
    data: Path, port: int, properties: Mapping[str, str], more: Sequence[Path] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment. `properties`: of the catalog behind it, whose database is in `data`.

    `more`: folders of jars, without which the server writes to local disks only.
    """
    rest = downloaded(_JARS, lambda text: print(text, file=sys.stderr, flush=True))
    path = ":".join(f"{library}/*" for library in (rest, *more, pyspark_jars()))
    catalog = {"uri": f"jdbc:sqlite:{data / 'rest-catalog.db'}", "rest.port": str(port), **properties}
    variables = {
        f"CATALOG_{key.replace('-', '__').replace('.', '_').upper()}": value for key, value in catalog.items()
    }
    return [str(find_java()), *JVM, "-cp", path, _MAIN], variables


def answers(uri: str) -> bool:
    """Whether a REST catalog answers there."""
    try:
        with urllib.request.urlopen(f"{uri}/v1/config"):  # noqa: S310 - of this machine
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it, or this process, is ended."""
    parser = argparse.ArgumentParser(prog="tests.servers.iceberg_rest", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the catalog's database")
    parser.add_argument("--warehouse", required=True, help="URI below which the tables are")
    options = parser.parse_args(argv)
    port = free_port()
    try:
        command, variables = server(options.data, port, {"warehouse": options.warehouse})
    except (JarsUnavailable, JdkMissing) as error:
        print(error, file=sys.stderr)
        return 1
    uri, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
    with subprocess.Popen(bound(command), env={**os.environ, **variables}, stdout=sys.stderr) as process:
        while not answers(uri) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if process.poll() is None:
            print(json.dumps({"ready": True, "uri": uri}), flush=True)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
