"""Writers with Hudi's own lock provider, for tests: a JVM that acquires and releases the locks of Hudi tables on S3.

| part | origin |
| --- | --- |
| `LockManager`, `StorageBasedLockProvider` with its heartbeat, the format of the lock object | Hudi's release on Maven Central |
| AWS SDK | Maven Central, in the version with which Hudi is built |
| `S3StorageLockClient.java`, the provider's client for S3 | this folder; Hudi's own is in hudi-aws, which has no 1.x release |
| Hadoop and Jackson | the jars of pyspark |
| `TableWriters.java`, which calls Hudi | this folder |

The jars (14 MB) and the compiled classes are kept in the cache, in a folder per version.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from lakewarden.agent.bound_child import bound
from lakewarden.agent.embedded.jars import Library, downloaded
from lakewarden.agent.embedded.jdk import OLDEST, find_java
from tests.servers.program import compile_java, one_at_a_time
from tests.servers.s3 import S3Server

HUDI_VERSION: Final = "1.2.1"
"""Its provider and lock manager differ from 1.2.0 only in the text of some messages."""
PATIENCE_SECONDS: Final = 180.0
"""Limit for a response; it only ends a hang."""

_SOURCES: Final = tuple(sorted(Path(__file__).parent.glob("*.java")))
_HUDI: Final = tuple(
    f"org.apache.hudi:{name}:{HUDI_VERSION}"
    for name in ("hudi-client-common", "hudi-common", "hudi-hadoop-common", "hudi-io")
)
"""Resolved without their 75 dependencies: a lock needs few of them, and pyspark contains those."""
_SDK: Final = "software.amazon.awssdk:s3:2.29.52"
_LEFT_OUT: Final = ("io.netty", "org.slf4j")
"""Not needed: the asynchronous part of the SDK is not used, and pyspark contains a newer slf4j with a logger."""
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=info")


def hudi_class_path() -> str:
    """The class path for a JVM of Hudi writers. Downloads and compiles first if necessary."""
    import pyspark

    found = hudi_jars()
    libraries = (found, Path(pyspark.__file__).parent / "jars")
    sources = hashlib.sha256(b"".join(each.read_bytes() for each in _SOURCES)).hexdigest()
    classes = found.with_name(f"classes-{sources[:12]}")
    with one_at_a_time(classes):
        if not classes.is_dir():
            _compile(classes, libraries)
    return ":".join((str(classes), *(f"{folder}/*" for folder in libraries)))


def hudi_jars() -> Path:
    """The folder with Hudi's jars, of the modules that its locks need. Downloads them first if necessary."""
    return downloaded(Library(f"Hudi {HUDI_VERSION}", f"hudi-{HUDI_VERSION}/jars", [_SDK], _HUDI, _LEFT_OUT))


def lock_client_jars(folder: Path) -> list[str]:
    """The jars that a Spark session with Hudi's bundle lacks for Hudi's lock on S3. One of them is written to `folder`."""
    classes = hudi_class_path().partition(":")[0]
    jar = folder / "client.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted((Path(classes) / "org").rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    sdk = (path for path in sorted(hudi_jars().glob("*.jar")) if not path.name.startswith("hudi-"))
    return [str(jar), *map(str, sdk)]


def _compile(classes: Path, libraries: Iterable[Path]) -> None:
    # The program javac expands `folder/*`, but the compiler module does not.
    jars = [jar for folder in libraries for jar in sorted(folder.glob("*.jar"))]
    with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
        new = Path(folder) / "classes"
        compile_java(_SOURCES, jars, new, "--release", str(OLDEST), "-nowarn")
        new.rename(classes)


class HudiWriters:
    """A JVM with any number of named writers. It ends with this process. Use it from the main thread."""

    def __init__(self, class_path: str, server: S3Server, folder: Path, *, lease_seconds: int) -> None:
        self._responses_file = folder / "responses.jsonl"
        self._log = folder / "jvm.log"
        self._ids = itertools.count()
        main = ["-cp", class_path, "TableWriters", str(lease_seconds), str(self._responses_file)]
        environment = {**os.environ, **server.environment, "AWS_ENDPOINT_URL_S3": server.endpoint}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                bound([str(find_java()), *_JVM, *main]),
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """Hudi's log so far."""
        return self._log.read_text()

    async def lock(self, writer: str, table: str, seconds: int = 60) -> str | None:
        """Acquire the table's lock within `seconds`; returns its owner, or None if it was not acquired."""
        response = await self._response(self._send(do="lock", writer=writer, table=table, seconds=seconds))
        owner: str | None = response.get("owner")
        return owner

    async def unlock(self, writer: str) -> None:
        """Release the lock."""
        await self._response(self._send(do="unlock", writer=writer))

    def start_cycles(self, writer: str, table: str, command: Sequence[str], pause: float) -> int:
        """Repeat until stopped: acquire the lock, run the command, release the lock, pause. Returns the command's number.

        The average pause is `pause` times the duration of the cycle before it.
        """
        return self._send(do="cycle", writer=writer, table=table, command=list(command), pause=pause)

    def cycle_statuses(self, number: int) -> list[int]:
        """The exit statuses of the command so far."""
        return [each["status"] for each in self._responses(number) if each["what"] == "cycle"]

    async def stop_cycles(self, *numbers: int) -> None:
        """Stop all cycles after the current one."""
        self._send(do="stop")
        for number in numbers:
            await self._response(number, "done")

    def kill(self) -> None:
        """End the JVM with SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _send(self, **command: Any) -> int:
        number = next(self._ids)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": number, **command}).encode() + b"\n")
        self.process.stdin.flush()
        return number

    async def _response(self, number: int, *whats: str) -> dict[str, Any]:
        """Wait for a response to this command, of one of these kinds if any are named."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while self.process.poll() is None:
                for response in self._responses(number):
                    if not whats or response["what"] in whats:
                        return response
                await anyio.sleep(0.02)
        raise AssertionError(f"no response from {self.process}:\n{self.log[-5000:]}")

    def _responses(self, number: int) -> list[dict[str, Any]]:
        text = self._responses_file.read_text() if self._responses_file.exists() else ""
        all_responses = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
        responses = [each for each in all_responses if each["id"] == number]
        for each in responses:
            assert each["what"] != "failed", f"{each['why']}\n{self.log[-5000:]}"
        return responses
