"""Compiles the Java classes of the sinks into the class files that the wheel contains.

    python -m tests.servers.java_classes

They are Java 8 byte code without debug information, so that the same source gives the same bytes. What they are compiled against
comes from Maven Central.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakewarden.agent.embedded.jdk import REMEDY, find_java
from lakewarden.spark_jobs.sinks.hudi import provider
from tests.servers.hudi import hudi_jars

COMPILER = "jdk.compiler/com.sun.tools.javac.Main"
"""`javac` as a module of the Java that is found: every JDK has it, no JRE does."""


@dataclass(frozen=True, slots=True)
class JavaClasses:
    """The Java classes of one sink."""

    sources: Path
    classes: Path
    class_path: Callable[[], list[Path]]

    def compiled(self) -> dict[str, bytes]:
        """Compile the sources. Return the class files by name."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(find_java()), "--module", COMPILER, "--release", "8", "-g:none", "-proc:none"]
            command += ["-Xlint:-options", "-d", folder]
            command += ["-cp", ":".join(map(str, sorted(self.class_path())))]
            command += map(str, sorted(self.sources.glob("*.java")))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(
                    f"the classes in {self.sources} can't be compiled: {done.stderr.strip()[-2000:]}; no compiler? {REMEDY}"
                )
            return {path.name: path.read_bytes() for path in Path(folder).rglob("*.class")}

    def renew(self) -> None:
        """Replace the class files of the wheel."""
        new = self.compiled()
        self.classes.mkdir(exist_ok=True)
        for stale in self.classes.glob("*.class"):
            stale.unlink()
        for name, content in new.items():
            (self.classes / name).write_bytes(content)


OF_SINKS: Final = {
    "hudi": JavaClasses(provider.SOURCES, provider.CLASSES, lambda: list(hudi_jars().glob("*.jar"))),
}

if __name__ == "__main__":
    for each in OF_SINKS.values():
        each.renew()
