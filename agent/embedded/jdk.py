"""Finds a Java for Kafka and Spark, or raises an error that says what to install.

The Java is the one in `JAVA_HOME` if that is set, else `java` on the PATH. Its version must be at least 17. Spark's own
scripts choose in the same way, so the checked Java is the one that later runs.

This module imports only the standard library, so that `make` can run it before anything is installed:
`python3 -P agent/embedded/jdk.py`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
"""Kafka 4 brokers and Spark 4 need Java 17."""

ANSWER_SECONDS = 20
"""Limit for `java -version`, which takes 0.1 s, or much longer on a busy machine. It only ends a hanging wrapper script."""

REMEDY = (
    f"install a JDK {OLDEST} or newer (Debian, Ubuntu: apt install openjdk-17-jdk-headless; "
    "macOS: brew install openjdk@17; others: https://adoptium.net), or set JAVA_HOME to one"
)


class JdkMissing(RuntimeError):
    """No suitable Java was found. Install one, or set JAVA_HOME to it."""


def find_java() -> Path:
    """The path of a `java` of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise JdkMissing(f"no Java found {where}: {REMEDY}")
    version = version_of(found)
    if version is None:
        raise JdkMissing(f"{found} -version printed no version: {REMEDY}")
    if version < OLDEST:
        raise JdkMissing(f"{found} is Java {version}, but Kafka needs {OLDEST} or newer: {REMEDY}")
    return Path(found)


def version_of(java: str) -> int | None:
    """Major version: 17 for `17.0.15`, 8 for `1.8.0_392`; None if the program fails, as the placeholder of macOS does."""
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
