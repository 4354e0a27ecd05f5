"""Prometheus and promtool: from the PATH, else from Debian's package, which apt downloads and nothing installs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.program import NoServerError, built, cache, one_at_a_time, spawn, stop

PACKAGE = "prometheus"


def programs() -> tuple[str, str]:
    """`prometheus` and `promtool`. Raises `NoServerError` if there are none."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] and found[1]:
        return found[0], found[1]
    folder = cache() / "debian" / PACKAGE
    tried: list[str] = []
    with one_at_a_time(folder):
        if not folder.exists() and not _unpacked(folder, tried):
            raise NoServerError(
                f"Prometheus is not installed and can't be downloaded; install the package {PACKAGE}, or put prometheus and "
                f"promtool on the PATH. Tried: {'; '.join(tried)}"
            )
    return str(folder / "usr/bin/prometheus"), str(folder / "usr/bin/promtool")


def _unpacked(folder: Path, tried: list[str]) -> bool:
    """Download the package and unpack it into `folder`."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        tried.append("there is no apt")
        return False
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        command = ["apt-get", "download", "--quiet", PACKAGE]
        if not built(command, {}, parent, tried):
            updated = os.geteuid() == 0 and built(["apt-get", "update", "--quiet"], {}, parent, tried)
            if not updated or not built(command, {}, parent, tried):
                return False
        (package,) = Path(parent).glob("*.deb")
        new = Path(parent) / "new"
        if not built(["dpkg", "-x", str(package), str(new)], {}, parent, tried):
            return False
        new.rename(folder)
    return True


@contextmanager
def server(configuration: Path, folder: Path, port: int) -> Iterator[Path]:
    """A running Prometheus on loopback, with its data in `folder`. Yields its log."""
    log = folder / "prometheus.log"
    command = [
        programs()[0],
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    process = spawn(command, {}, log)
    try:
        yield log
    finally:
        stop(process)
