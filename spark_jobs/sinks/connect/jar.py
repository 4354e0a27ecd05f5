"""The jar for a server of Spark Connect: `python -m lakewarden.spark_jobs.sinks.connect.jar FOLDER` prints the option for it.

A session that may add artifacts needs none: the sink adds it then (`procedures.py`).
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from lakewarden.spark_jobs.sinks.delta import fence
from lakewarden.spark_jobs.sinks.iceberg import release

SOURCES = Path(__file__).parent / "java"
CLASSES = Path(__file__).parent / "classes"
JAR = "lakewarden-connect.jar"

PACKAGES = {
    "lakewarden": CLASSES,
    "io/delta/storage": fence.CLASSES,
    "lakewarden/iceberg": release.CLASSES,  # Java defines them in Iceberg's own packages
}
"""The folders of class files, by their folders in the jar."""

_ONCE = (1980, 1, 1, 0, 0, 0)
"""The time of each entry: the same classes give the same jar."""


def write_jar(folder: Path | str) -> Path:
    """Write the jar into a folder, and return its path."""
    path = Path(folder) / JAR
    with zipfile.ZipFile(path, "w") as jar:
        for package, classes in PACKAGES.items():
            for file in sorted(classes.glob("*.class")):
                jar.writestr(zipfile.ZipInfo(f"{package}/{file.name}", _ONCE), file.read_bytes())
    return path


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(f"--jars {write_jar(folder).resolve()}")  # noqa: T201 - a command
