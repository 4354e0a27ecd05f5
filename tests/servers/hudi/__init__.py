"""Writers with Hudi's own lock provider, for tests: a JVM that takes and gives back the locks of Hudi tables on S3.

What is Hudi's and what is ours:

- `LockManager`, `StorageBasedLockProvider` with its heartbeat, the lock object's format and their configuration are the byte code
  of Hudi's release, from Maven Central. So is the AWS SDK, in the version with which Hudi is built.
- The provider's client for S3 is ours (`S3StorageLockClient.java`, which says what it does as Hudi's does it): Hudi's own is in
  hudi-aws, and no 1.x release of that is on Maven Central.
- Of what Hudi is built with, Hadoop's and Jackson's classes are those that come with pyspark.
- `TableWriters.java`, ours, is who calls Hudi.

The jars (14 MB) and the compiled classes are kept in the cache, a version each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.embedded.jars import dependency, maven_context
from lakewarden.agent.embedded.jdk import OLDEST, find_java
from tests.servers.program import NoServerError, built, cache, one_at_a_time
from tests.servers.s3 import S3Server

HUDI_VERSION: Final = "1.2.1"
"""Its provider and lock manager are 1.2.0's but for the words of some messages."""
PATIENCE_SECONDS: Final = 90.0
"""For an answer; never measured."""

_SOURCES: Final = tuple(sorted(Path(__file__).parent.glob("*.java")))
_HUDI: Final = tuple(
    f"org.apache.hudi:{name}:{HUDI_VERSION}"
    for name in ("hudi-client-common", "hudi-common", "hudi-hadoop-common", "hudi-io")
)
"""Each by itself: of the 75 jars that they name a lock needs few, and pyspark has those."""
_SDK: Final = "software.amazon.awssdk:s3:2.29.52"
_LEFT_OUT: Final = ("io.netty", "org.slf4j")
"""The SDK's asynchronous half is not used; pyspark has the newer slf4j, with a logger behind it."""
_ATTEMPTS: Final = 3
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=info")
_COMPILER: Final = "jdk.compiler/com.sun.tools.javac.Main"
"""`javac`, wherever it may be: every JDK has it, no JRE does."""


def hudi_class_path() -> str:
    """Everything that a JVM of Hudi writers needs, fetched and compiled first where it isn't there yet."""
    import pyspark

    jars = cache() / f"hudi-{HUDI_VERSION}" / "jars"
    with one_at_a_time(jars):
        if not jars.is_dir():
            _fetch(jars)
    libraries = (jars, Path(pyspark.__file__).parent / "jars")
    sources = hashlib.sha256(b"".join(each.read_bytes() for each in _SOURCES)).hexdigest()
    classes = jars.with_name(f"classes-{sources[:12]}")
    with one_at_a_time(classes):
        if not classes.is_dir():
            _compile(classes, libraries)
    return ":".join((str(classes), *(f"{folder}/*" for folder in libraries)))


def _fetch(jars: Path) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
            new = Path(folder) / "jars"
            new.mkdir()
            try:
                for jar in _resolved(Path(folder) / "m2"):
                    shutil.copy(jar, new)
            except Exception as failure:
                if attempt == _ATTEMPTS:
                    raise NoServerError(
                        f"Hudi {HUDI_VERSION} could not be fetched from Maven Central ({' '.join(str(failure).split())}): "
                        "check the network, or name a mirror in ~/.config/jgo.conf ([repositories], central = URL)"
                    ) from failure
            else:
                new.rename(jars)
                return


def _resolved(repository: Path) -> list[Path]:
    """The jars, downloaded."""
    maven = maven_context(repository)
    alone = [dependency(maven, each) for each in _HUDI]
    inputs, transitive = maven.resolver.resolve([dependency(maven, _SDK)])
    wanted = [
        each.artifact
        for each in (*alone, *inputs, *transitive)
        if each.scope in ("compile", "runtime") and each.artifact.groupId not in _LEFT_OUT
    ]
    return [artifact.resolve() for artifact in wanted]


def _compile(classes: Path, libraries: Iterable[Path]) -> None:
    # What expands `folder/*` is the program javac, and not the compiler.
    path = ":".join(str(jar) for folder in libraries for jar in sorted(folder.glob("*.jar")))
    tried: list[str] = []
    with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
        new = Path(folder) / "classes"
        compiler = [
            str(find_java()),
            "--module",
            _COMPILER,
            "--release",
            str(OLDEST),
            "-nowarn",
            "-proc:none",
        ]
        arguments = ["-d", str(new), "-cp", path, *map(str, _SOURCES)]
        if not built([*compiler, *arguments], {}, folder, tried):
            raise NoServerError(
                f"Hudi's writers could not be compiled, which takes a JDK: {'; '.join(tried)}"
            )
        new.rename(classes)


class HudiWriters:
    """A JVM with any number of writers, each known by its name; it dies with us. Use it from the main thread."""

    def __init__(self, class_path: str, server: S3Server, folder: Path, *, lease_seconds: int) -> None:
        self._answers = folder / "answers.jsonl"
        self._log = folder / "jvm.log"
        self._ids = itertools.count()
        main = ["-cp", class_path, "TableWriters", str(lease_seconds), str(self._answers)]
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
        """What Hudi has logged so far."""
        return self._log.read_text()

    async def lock(self, writer: str, table: str, seconds: int = 60) -> str | None:
        """Take the table's lock, trying for so long; its owner, None where it could not be had."""
        answer = await self._response(self._send(do="lock", writer=writer, table=table, seconds=seconds))
        owner: str | None = answer.get("owner")
        return owner

    async def unlock(self, writer: str) -> None:
        """Give it back."""
        await self._response(self._send(do="unlock", writer=writer))

    def start_cycles(self, writer: str, table: str, command: Sequence[str], pause: float) -> int:
        """Take the lock, run the command, give the lock back, pause as long as so many turns on average; over and over."""
        return self._send(do="cycle", writer=writer, table=table, command=list(command), pause=pause)

    def cycle_statuses(self, number: int) -> list[int]:
        """The statuses with which the command has ended so far."""
        return [each["status"] for each in self._responses(number) if each["what"] == "cycle"]

    async def stop_cycles(self, *numbers: int) -> None:
        """End them all after the turn in hand."""
        self._send(do="stop")
        for number in numbers:
            await self._response(number, "done")

    def kill(self) -> None:
        """As a crash would."""
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
        """Wait for the answer to this command, or for one of these."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while self.process.poll() is None:
                for answer in self._responses(number):
                    if not whats or answer["what"] in whats:
                        return answer
                await anyio.sleep(0.02)
        raise AssertionError(f"no answer of {self.process}:\n{self.log[-5000:]}")

    def _responses(self, number: int) -> list[dict[str, Any]]:
        text = self._answers.read_text() if self._answers.exists() else ""
        answers = [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
        mine = [each for each in answers if each["id"] == number]
        for each in mine:
            assert each["what"] != "failed", f"{each['why']}\n{self.log[-5000:]}"
        return mine
