"""Kafka's jars, fetched once from Maven Central by jgo and kept in the user's cache.

Rule: the cache folder is either complete or absent. Everything is fetched into a folder beside it, each jar is read
through once (its checksums), and a rename puts it in place; two processes that start at once are kept apart by a file
lock. Reason: an interrupted download must not break every later start.

jgo resolves in Python, so no `mvn` is needed. What Maven has already on this machine is used (`M2_REPO` or
~/.m2/repository) but never changed. A mirror is named where jgo looks for it: `[repositories] central = URL` in
~/.config/jgo.conf.

`python -m lakewarden.agent.embedded.jars` fetches them beforehand, for a machine that will have no network later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakewarden.agent.errors import AgentError

KAFKA_VERSION = "4.1.0"
COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka brings log4j but, since it ships it in its distribution only, not the bridge from slf4j to it.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
ATTEMPTS = 3
"""A download of 45 files over a bad line is worth repeating; more often than this the network is down."""
REQUEST_SECONDS = 30
PARALLEL = 8
"""Downloads at once: most of the time goes into round trips, and Maven Central allows this many."""

Progress = Callable[[str], None]


class KafkaUnavailable(AgentError):
    """Kafka's files are neither here nor to be had. Check the network, or name a mirror."""


def cache_root() -> Path:
    """Where downloads are kept: `LAKEWARDEN_CACHE_DIR`, else `$XDG_CACHE_HOME/lakewarden`, else ~/.cache/lakewarden."""
    named = os.environ.get("LAKEWARDEN_CACHE_DIR")
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "lakewarden").expanduser()
    )


def jars_folder() -> Path:
    """Where the broker's jars are, or will be: there is nothing, or all of them."""
    return cache_root() / f"kafka-{KAFKA_VERSION}"


def kafka_jars(on_progress: Progress) -> Path:
    """The folder with every jar of the broker; fetched first, telling its progress, if it isn't there yet."""
    home = jars_folder()
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(home.with_name(f"{home.name}.lock"), on_progress):
        if not home.is_dir():  # else another process fetched it while we waited
            _fetch(home, on_progress)
    return home


def _fetch(home: Path, on_progress: Progress) -> None:
    partial = home.with_name(f"{home.name}.partial")
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(
            partial, ignore_errors=True
        )  # left by a process that was killed, or by the last attempt
        try:
            _download_all(partial, on_progress)
        except Exception as failure:
            reason = " ".join(str(failure).split()) or type(failure).__name__
            if attempt == ATTEMPTS:
                raise KafkaUnavailable(
                    f"Kafka {KAFKA_VERSION} could not be fetched from Maven Central ({reason}): check the network, or "
                    "name a mirror in ~/.config/jgo.conf ([repositories], central = URL)"
                ) from failure
            on_progress(f"trying again, attempt {attempt + 1} of {ATTEMPTS}: {reason}")
        else:
            (partial / "jars").rename(home)
            shutil.rmtree(partial, ignore_errors=True)
            return


def _download_all(partial: Path, on_progress: Progress) -> None:
    """Resolve and fetch everything into `partial/jars`."""
    jars = partial / "jars"
    jars.mkdir(parents=True)
    on_progress(f"resolving Kafka {KAFKA_VERSION} (first time only)")
    artifacts = _resolve(partial / "m2")
    total_bytes = 0
    with ThreadPoolExecutor(PARALLEL) as pool:
        fetches = [pool.submit(_fetch_one, artifact, jars) for artifact in artifacts]
        try:
            for done, fetch in enumerate(as_completed(fetches), start=1):
                total_bytes += fetch.result()
                on_progress(
                    f"downloading Kafka {KAFKA_VERSION} (first time only): "
                    f"{done} of {len(fetches)} files, {total_bytes / 1e6:.0f} MB"
                )
        finally:
            pool.shutdown(cancel_futures=True)


def maven_context(repository: Path) -> Any:
    """jgo's Maven, which downloads into `repository`. jgo has no types, hence `Any`."""
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
    """What jgo resolves.

    Raw: else it takes each for a bill of materials, and log4j's would bring Kafka's clients in another version.
    """
    from jgo.parse import Coordinate

    return maven.create_dependency(replace(Coordinate.parse(coordinate), scope="compile", raw=True))


def _resolve(repository: Path) -> list[Any]:
    """jgo's artifacts of the whole dependency graph."""
    maven = maven_context(repository)
    inputs, transitive = maven.resolver.resolve([dependency(maven, each) for each in COORDINATES])
    return [each.artifact for each in [*inputs, *transitive] if each.scope in ("compile", "runtime")]


def _fetch_one(artifact: Any, jars: Path) -> int:
    """Put one jar into `jars`, whole or not at all; its size in bytes."""
    source: Path = artifact.resolve()
    jar = jars / source.name
    shutil.copyfile(source, jar)
    with zipfile.ZipFile(jar) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"{source} is damaged at {damaged}: delete it")
    return jar.stat().st_size


@contextmanager
def _exclusive_lock(path: Path, on_progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever has it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting for another process that is fetching Kafka")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        kafka_jars(lambda text: print(text, flush=True))  # noqa: T201 - read by a person, or by embedded_kafka
    except KafkaUnavailable as unavailable:
        sys.exit(str(unavailable))
