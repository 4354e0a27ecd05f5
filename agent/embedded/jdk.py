"""Find a Java that can run Kafka and Spark, or say in one line what to install.

Rule: `JAVA_HOME` if it is set, else `java` on PATH, and its version is at least 17. Reason: Spark's own scripts choose
the same way, so what is checked here is what later runs. Only the standard library is imported, so that `make` can run
this file before anything is installed: `python3 -P agent/embedded/jdk.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
"""Kafka 4 brokers and Spark 4 need Java 17."""

ANSWER_SECONDS = 20
"""`java -version` takes 0.1 s; a loaded machine may take much longer, a hanging wrapper must not hold us for ever."""

REMEDY = (
    f"install a JDK {OLDEST} or newer (Debian, Ubuntu: apt install openjdk-17-jdk-headless; "
    "macOS: brew install openjdk@17; else https://adoptium.net) or point JAVA_HOME at one"
)


class JdkMissing(RuntimeError):
    """No Java that is new enough. Install one, or point JAVA_HOME at it."""


def find_java() -> Path:
    """Path of a `java` of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise JdkMissing(f"no Java found {where}: {REMEDY}")
    version = _version(found)
    if version is None:
        raise JdkMissing(f"{found} does not tell its version: {REMEDY}")
    if version < OLDEST:
        raise JdkMissing(f"{found} is Java {version}, and Kafka needs {OLDEST}: {REMEDY}")
    return Path(found)


def _version(java: str) -> int | None:
    """Major version: 17 for `17.0.15`, 8 for `1.8.0_392`; None where the program fails, as macOS's placeholder does."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match and answer.returncode == 0 else None


if __name__ == "__main__":
    try:
        find_java()
    except JdkMissing as missing:
        sys.exit(f"error: {missing}")
