"""A virtual environment with what `pip install lakewarden` installs, and nothing else. Without an extra: no Spark, no pyarrow."""

from __future__ import annotations

import importlib
import subprocess
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def plain_environment(folder: Path, extra: str = "") -> Path:
    """Create the environment, from the packages that are installed here; return its Python. `extra`: of lakewarden."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(
        subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    )
    for each in _needed("lakewarden", extra):
        for name in _top_levels(each):
            (packages / name).symlink_to(str(each.locate_file(name)))
    (packages / "lakewarden").mkdir()
    for room in ("agent", "events", "handlers", "spark_jobs"):
        source = importlib.import_module(f"lakewarden.{room}").__file__
        assert source is not None
        (packages / "lakewarden" / room).symlink_to(Path(source).parent)
    return python


def _needed(project: str, extra: str) -> list[Distribution]:
    """The distributions that a project needs with this extra, those that they need included."""
    found: dict[str, Distribution] = {}
    missing = [project]
    while missing:
        for line in distribution(missing.pop()).requires or ():
            needed = Requirement(line)
            name = canonicalize_name(needed.name)
            if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": extra})):
                found[name] = distribution(name)
                missing.append(name)
    return list(found.values())


def _top_levels(installed: Distribution) -> list[str]:
    """The names of a distribution's files and folders in `site-packages`."""
    return sorted({path.parts[0] for path in installed.files or ()} - {"..", "__pycache__"})
