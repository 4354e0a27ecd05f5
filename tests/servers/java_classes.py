"""Compiles the Java classes of `HudiSink` into the class files that the wheel contains.

    python -m tests.servers.java_classes

They are Java 8 byte code without debug information, so that the same source gives the same bytes. Hudi's own classes come from
Maven Central.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from lakewarden.agent.embedded.jdk import REMEDY, find_java
from lakewarden.spark_jobs.sinks.hudi.provider import CLASSES, SOURCES
from tests.servers.hudi import hudi_jars

COMPILER = "jdk.compiler/com.sun.tools.javac.Main"
"""`javac` as a module of the Java that is found: every JDK has it, no JRE does."""


def compiled() -> dict[str, bytes]:
    """Compile the sources. Return the class files by name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(find_java()), "--module", COMPILER, "--release", "8", "-g:none", "-proc:none"]
        command += [
            "-Xlint:-options",
            "-d",
            folder,
            "-cp",
            ":".join(map(str, sorted(hudi_jars().glob("*.jar")))),
        ]
        command += map(str, sorted(SOURCES.glob("*.java")))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"the Java classes of HudiSink can't be compiled: {done.stderr.strip()[-2000:]}; no compiler? {REMEDY}"
            )
        return {path.name: path.read_bytes() for path in Path(folder).rglob("*.class")}


if __name__ == "__main__":
    CLASSES.mkdir(exist_ok=True)
    for stale in CLASSES.glob("*.class"):
        stale.unlink()
    for name, content in compiled().items():
        (CLASSES / name).write_bytes(content)
