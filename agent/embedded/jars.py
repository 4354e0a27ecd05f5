"""The jars of Java programs, such as Kafka: downloaded once from Maven Central with jgo and kept in the user's cache.

The cache folder is either complete or absent, so that an interrupted download breaks no later start. The jars are downloaded
into another folder, their checksums are verified, and a rename puts the folder in place. A file lock excludes concurrent
downloads.

jgo resolves dependencies in Python, so `mvn` is not needed. jgo uses jars of a Maven repository on this machine (`M2_REPO`
or ~/.m2/repository), but never changes it. To use a mirror, write `[repositories] central = URL` into ~/.config/jgo.conf.

`python -m lakewarden.agent.embedded.jars` downloads Kafka's in advance, for a machine that will have no network later.
"""

import fcntl
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakewarden.agent.errors import AgentError

KAFKA_VERSION = "4.4.0"
ATTEMPTS = 3
"""Some of 45 downloads may fail on a bad connection. After this many attempts the network is probably down."""
REQUEST_SECONDS = 30
PARALLEL = 8
"""Concurrent downloads. Most of the time is spent on round trips, and Maven Central allows this many connections."""

Progress = Callable[[str], None]


class JarsUnavailable(AgentError):
    """A program's jars could not be downloaded. Check the network, or configure a mirror."""


@dataclass(frozen=True, slots=True)
class Library:
    """The jars of a program, by their coordinates."""

    name: str
    """Human-readable."""
    folder: str
    """In the cache."""
    with_dependencies: Sequence[str]
    alone: Sequence[str] = ()
    left_out: Sequence[str] = ()
    """Groups that nothing is taken from."""


def kafka_library(version: str = KAFKA_VERSION) -> Library:
    """The jars of a release of Kafka."""
    return Library(
        f"Kafka {version}",
        f"kafka-{version}",
        (
            f"org.apache.kafka:kafka_2.13:{version}",
            # Kafka depends on log4j, but not on its bridge from slf4j, which is only in Kafka's distribution.
            "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
        ),
    )


def cache_root() -> Path:
    """The folder for downloads: `LAKEWARDEN_CACHE_DIR`, else `$XDG_CACHE_HOME/lakewarden`, else ~/.cache/lakewarden."""
    folder = os.environ.get("LAKEWARDEN_CACHE_DIR")
    return (
        Path(folder)
        if folder
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "lakewarden").expanduser()
    )


def jars_folder(library: Library) -> Path:
    """The folder of the jars. It is complete, or absent before the download."""
    return cache_root() / library.folder


def downloaded(library: Library, on_progress: Progress = lambda _: None) -> Path:
    """The folder of the jars. Downloads them first if necessary, and reports the progress. Raises `JarsUnavailable`."""
    home = jars_folder(library)
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(home.with_name(f"{home.name}.lock"), library, on_progress):
        if not home.is_dir():  # another process may have downloaded it in the meantime
            _download(home, library, on_progress)
    return home


def _download(home: Path, library: Library, on_progress: Progress) -> None:
    partial = home.with_name(f"{home.name}.partial")
    for attempt in range(1, ATTEMPTS + 1):
        # Left behind by a killed process, or by the previous attempt.
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _download_all(partial, library, on_progress)
        except Exception as failure:
            reason = " ".join(str(failure).split()) or type(failure).__name__
            if attempt == ATTEMPTS:
                raise JarsUnavailable(
                    f"{library.name} could not be downloaded from Maven Central ({reason}): check the network, or "
                    "set a mirror in ~/.config/jgo.conf ([repositories], central = URL)"
                ) from failure
            on_progress(f"retrying the download, attempt {attempt + 1} of {ATTEMPTS}: {reason}")
        else:
            (partial / "jars").rename(home)
            shutil.rmtree(partial, ignore_errors=True)
            return


def _download_all(partial: Path, library: Library, on_progress: Progress) -> None:
    jars = partial / "jars"
    jars.mkdir(parents=True)
    on_progress(f"resolving {library.name} (first time only)")
    artifacts = _resolve(partial / "m2", library)
    total_bytes = 0
    with ThreadPoolExecutor(PARALLEL) as pool:
        downloads = [pool.submit(_download_one, artifact, jars) for artifact in artifacts]
        try:
            for done, download in enumerate(as_completed(downloads), start=1):
                total_bytes += download.result()
                on_progress(
                    f"downloading {library.name} (first time only): "
                    f"{done} of {len(downloads)} files, {total_bytes / 1e6:.0f} MB"
                )
        finally:
            pool.shutdown(cancel_futures=True)


def maven_context(repository: Path) -> Any:
    """jgo's Maven context that downloads into `repository`. jgo has no type annotations, hence `Any`."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext

    settings = GlobalSettings.load()
    return MavenContext(
        repo_cache=repository,
        local_repos=[settings.repo_cache],
        remote_repos={"central": MAVEN_CENTRAL_URL, **settings.repositories},
        timeout=REQUEST_SECONDS,
    )


def dependency(maven: Any, coordinate: str) -> Any:
    """A dependency for jgo's resolver.

    With `raw`, because jgo otherwise treats it as a bill of materials, and log4j's would change the version of Kafka's clients.
    """
    from jgo.parse import Coordinate

    return maven.create_dependency(replace(Coordinate.parse(coordinate), scope="compile", raw=True))


def _resolve(repository: Path, library: Library) -> list[Any]:
    maven = maven_context(repository)
    wanted = [dependency(maven, each) for each in library.with_dependencies]
    inputs, transitive = maven.resolver.resolve(wanted) if wanted else ([], [])
    alone = [dependency(maven, each) for each in library.alone]
    return [
        each.artifact
        for each in [*alone, *inputs, *transitive]
        if each.scope in ("compile", "runtime") and each.artifact.groupId not in library.left_out
    ]


def _download_one(artifact: Any, jars: Path) -> int:
    """Download one jar into `jars` and verify it; returns its size in bytes."""
    source: Path = artifact.resolve()
    jar = jars / source.name
    shutil.copyfile(source, jar)
    with zipfile.ZipFile(jar) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{source} is damaged at {damaged}; delete it")
    return jar.stat().st_size


@contextmanager
def _exclusive_lock(path: Path, library: Library, on_progress: Progress) -> Iterator[None]:
    """Lock the file `path` for the block, waiting until no other process has it locked."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(f"waiting for another process that downloads {library.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        downloaded(kafka_library(*sys.argv[1:]), lambda text: print(text, flush=True))  # noqa: T201 - read by a user, or by kafka.py
    except JarsUnavailable as unavailable:
        sys.exit(str(unavailable))
