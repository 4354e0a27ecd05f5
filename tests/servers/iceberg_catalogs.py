"""Real catalogs of Iceberg for tests: Iceberg's own REST server, on a catalog in SQLite; Nessie; PostgreSQL; Hive's metastore.

| part | origin |
| --- | --- |
| `RESTCatalogServer` | `iceberg-open-api`, classifier `test-fixtures`; it answers by the adapter in the tests of `iceberg-core` |
| Iceberg, its access to S3, SQLite, Jetty | Maven Central |
| Hadoop's configuration class | the jars of pyspark |

Nessie is its own program, `nessie-quarkus`. It lists the newest snapshot of a table only, without a parent. The jars
are kept in the cache, in a folder per version.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lakewarden.agent.embedded.jars import Library, downloaded
from lakewarden.agent.embedded.jdk import find_java, version_of
from lakewarden.agent.embedded.kafka import free_port
from tests.servers.iceberg_rest import JVM, VERSION, answers, pyspark_jars, server
from tests.servers.program import NoServerError, cache, one_at_a_time, spawn, stop
from tests.servers.s3 import S3Server

POSTGRESQL: Final = "org.postgresql:postgresql:42.7.7"
"""The driver of Java."""
_POSTGRESQL: Final = "17.5.0"
_MORE: Final = Library(
    "Iceberg's access to S3, and PostgreSQL's driver",
    f"iceberg-more-{VERSION}",
    (),
    [
        f"org.apache.iceberg:iceberg-aws:{VERSION}",
        f"org.apache.iceberg:iceberg-aws-bundle:{VERSION}",
        "dev.failsafe:failsafe:3.3.2",
        POSTGRESQL,
    ],
)
"""Without dependencies: the bundle has them."""
_METASTORE: Final = """
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

class Metastore {
  public static void main(String[] arguments) throws Throwable {
    TxnDbUtil.prepDb(new org.apache.hadoop.hive.conf.HiveConf());  // the tables of its locks
    HiveMetaStore.main(arguments);
  }
}
"""
_START_SECONDS: Final = 120

NESSIE: Final = "org.projectnessie.nessie:nessie-quarkus:0.99.0:runner"
_NESSIE_JAVA: Final = 21


@contextmanager
def running_rest_catalog(folder: Path, properties: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield its URI. `properties` are those of the catalog behind it, whose tables are named in `folder`."""
    port, log = free_port(), folder / "rest-catalog.log"
    uri = f"http://127.0.0.1:{port}"
    command, environment = server(folder, port, properties, [downloaded(_MORE)])
    with _running(command, log, lambda: answers(uri), environment):
        yield uri


@contextmanager
def running_nessie(
    folder: Path, bucket: str, s3: S3Server, *, vends: bool = False, signs: bool = False
) -> Iterator[str]:
    """Run Nessie with the warehouse `warehouse` in the bucket, its branches in memory. Yields the URI of its REST catalog.

    `vends`: it gets credentials for its clients from the server's STS. `signs`: it signs their requests; Iceberg 1.12 asks
    another address for a signature than Nessie 0.99 has. Otherwise they have their own credentials.
    """
    (jar,) = downloaded(Library("Nessie", "nessie-0.99.0", (), [NESSIE])).iterdir()
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
        **(
            {
                f"{store}.sts-endpoint": s3.endpoint,
                f"{store}.client-iam.enabled": "true",
                f"{store}.client-iam.assume-role": "arn:aws:iam::123456789012:role/client",
            }
            if vends
            else {f"{store}.request-signing-enabled": str(signs).lower()}
        ),
        "bucket.name": s3.access_key,
        "bucket.secret": s3.secret_key,
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    command = [str(newest_java(_NESSIE_JAVA)), *JVM[1:], "-Xmx512m", *options, "-jar", str(jar)]
    uri = f"http://127.0.0.1:{port}/iceberg"
    with _running(command, folder / "nessie.log", lambda: answers(uri)):
        yield uri


@contextmanager
def running_hive_metastore(folder: Path) -> Iterator[str]:
    """Run Hive's metastore on a Derby database in the folder. Yields its URI. Its jars are those of pyspark."""
    port, log = free_port(), folder / "metastore.log"
    properties = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore'};create=true",
        "hive.metastore.schema.verification": "false",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "hikaricp",
        "hive.metastore.warehouse.dir": f"file://{folder / 'warehouse'}",
        "hive.async.log.enabled": "false",  # whose logger isn't among the jars
        "hive.log.dir": str(folder),
        "derby.stream.error.file": str(folder / "derby.log"),
    }
    program = folder / "Metastore.java"
    program.write_text(_METASTORE)
    command = [str(find_java()), *JVM, *(f"-D{key}={value}" for key, value in properties.items())]
    command += ["-cp", f"{pyspark_jars()}/*", str(program), "-p", str(port)]
    with _running(command, log, lambda: _listens(port)):
        yield f"thrift://127.0.0.1:{port}"


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Run PostgreSQL with an empty database. Yields its URI."""
    programs = _postgresql() / "bin"
    # PostgreSQL refuses to be root. In a user namespace of its own it doesn't know, and has the same files.
    other_user = ["unshare", "--user"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="lakewarden-postgresql-") as folder:
        data, log, port = f"{folder}/data", Path(folder) / "log", free_port()
        log.touch()
        subprocess.run(
            [
                *other_user,
                str(programs / "initdb"),
                "-D",
                data,
                "-A",
                "trust",
                "-U",
                "lakewarden",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
        )
        command = [*other_user, "setpriv", "--pdeathsig", "KILL", str(programs / "postgres"), "-D", data]
        process = spawn([*command, "-p", str(port), "-k", "", "-c", "fsync=off"], {}, log)
        try:
            _wait_until(lambda: "ready to accept connections" in log.read_text(), process, log)
            yield f"postgresql://127.0.0.1:{port}/postgres?user=lakewarden"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _postgresql() -> Path:
    """Return the folder of zonky's embedded PostgreSQL, in the cache."""
    home = cache() / f"postgresql-{_POSTGRESQL}"
    machine = {"x86_64": "amd64", "aarch64": "arm64v8"}.get(platform.machine(), platform.machine())
    jar = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}:{_POSTGRESQL}"
    found = downloaded(Library("PostgreSQL", f"embedded-postgres-{_POSTGRESQL}", (), [jar]))
    with one_at_a_time(home), tempfile.TemporaryDirectory(dir=home.parent) as folder:
        if not home.is_dir():
            (packed,) = found.iterdir()
            with zipfile.ZipFile(packed) as archive:
                (inner,) = (name for name in archive.namelist() if name.endswith(".txz"))
                with archive.open(inner) as txz, tarfile.open(fileobj=txz, mode="r:xz") as tar:
                    tar.extractall(f"{folder}/new", filter="tar")
            Path(folder, "new").rename(home)
    return home


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
def _running(
    command: list[str], log: Path, is_ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    process = spawn(command, environment or {}, log)
    try:
        _wait_until(is_ready, process, log)
        yield
    finally:
        stop(process)


def _wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoServerError(f"the catalog's server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
