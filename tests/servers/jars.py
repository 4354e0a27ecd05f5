"""Jars of Java programs for tests: from Maven Central by jgo, kept in the cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lakewarden.agent.embedded.jars import dependency, maven_context
from tests.servers.program import NoServerError, cache, one_at_a_time

_ATTEMPTS: Final = 3


def jars(
    folder: str, *, alone: Sequence[str], with_dependencies: Sequence[str], left_out: Sequence[str]
) -> Path:
    """Return the folder with these jars, `folder` in the cache. Download them first if necessary.

    `alone` are taken without their dependencies. `left_out`: groups that nothing is taken from. Raises `NoServerError`.
    """
    found = cache() / folder
    with one_at_a_time(found):
        if not found.is_dir():
            _fetch(found, alone, with_dependencies, left_out)
    return found


def _fetch(
    jars: Path, alone: Sequence[str], with_dependencies: Sequence[str], left_out: Sequence[str]
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
            new = Path(folder) / "jars"
            new.mkdir()
            try:
                for jar in _resolved(Path(folder) / "m2", alone, with_dependencies, left_out):
                    shutil.copy(jar, new)
            except Exception as failure:
                if attempt == _ATTEMPTS:
                    reason = " ".join(str(failure).split())
                    raise NoServerError(
                        f"{jars.relative_to(cache())} could not be downloaded from Maven Central ({reason}): check the "
                        "network, or set a mirror in ~/.config/jgo.conf ([repositories], central = URL)"
                    ) from failure
            else:
                new.rename(jars)
                return


def _resolved(
    repository: Path, alone: Sequence[str], with_dependencies: Sequence[str], left_out: Sequence[str]
) -> list[Path]:
    """Download the jars; returns their paths."""
    maven = maven_context(repository)
    single = [dependency(maven, each) for each in alone]
    wanted = [dependency(maven, each) for each in with_dependencies]
    inputs, transitive = maven.resolver.resolve(wanted) if wanted else ([], [])
    artifacts = [
        each.artifact
        for each in (*single, *inputs, *transitive)
        if each.scope in ("compile", "runtime") and each.artifact.groupId not in left_out
    ]
    return [artifact.resolve() for artifact in artifacts]
