"""An Azure Blob server for tests: Azurite, in memory.

The program `azurite-blob` comes from the PATH, from the cache, or from `npm install` into the cache (about 30 s and 190 MB,
once). It runs on Node 10 to 20; the next version needs 21. If Node is not installed, it comes from PyPI. Azurite honours
`If-None-Match: *` and `If-Match` on writes, as the contract tests and the races show. Clients use it as an ordinary endpoint
with the account in its path, and not with obstore's emulator option.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.servers.program import (
    NoServerError,
    built,
    cache,
    new_name,
    node_folder,
    npm_command,
    one_at_a_time,
    started,
)

ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's published account and key, which are the same everywhere."""
_PROGRAM: Final = "azurite-blob"
_PACKAGE: Final = "azurite@3.35.0"
_API: Final = "2023-11-03"
_REQUEST_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server: its endpoint and its credentials."""

    endpoint: str
    used: str
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}
    )
    """The variables for the standard credential chain, for `monkeypatch.setenv` and child processes."""

    def container(self) -> str:
        """Create a container; returns its name."""
        name = new_name()
        date = email.utils.formatdate(usegmt=True)
        # The shared-key signature covers the method, eleven headers that are empty here, the x-ms headers, account and
        # path, and the query.
        signed = "\n".join(
            (
                "PUT" + 11 * "\n",
                f"x-ms-date:{date}",
                f"x-ms-version:{_API}",
                f"/{ACCOUNT}/{ACCOUNT}/{name}",
                "restype:container",
            )
        )
        signature = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(  # noqa: S310 - to a server of our own
            f"{self.endpoint}/{name}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
            },
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:  # noqa: S310 - likewise
            assert answer.status == 201
        return name


@contextmanager
def running_azure_server() -> Iterator[AzureServer]:
    """Run a server during the block. Its process ends with this one, even after SIGKILL."""
    tried: list[str] = []
    program = _installed(tried)
    with ExitStack() as stack:
        endpoint = None if program is None else _start(program, stack, tried)
        if endpoint is None:
            raise NoServerError(
                f"no Azure server for the tests; install azurite-blob by hand: {'; '.join(tried)}"
            )
        yield AzureServer(endpoint, f"{_PACKAGE}: {program}")


def prepare_azure_server() -> None:
    """Install the server if necessary, before the first test's timeout starts."""
    _installed([])


def _installed(tried: list[str]) -> Path | None:
    if found := shutil.which(_PROGRAM):
        return Path(found)
    folder = cache() / _PACKAGE
    program = folder / "node_modules" / ".bin" / _PROGRAM
    if program.exists():
        return program
    npm = npm_command(tried)
    node = node_folder(tried)
    if npm is None or node is None:
        return None
    with one_at_a_time(folder), tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        if not program.exists():
            new = Path(parent) / "new"
            new.mkdir()
            command = [*npm, "install", "--prefix", str(new), "--no-audit", "--no-fund", _PACKAGE]
            if not built(command, _with_node(node), parent, tried):
                return None
            new.rename(folder)
    return program


def _with_node(folder: Path | None) -> dict[str, str]:
    """The PATH for npm's programs, which search `node` there."""
    return {} if folder is None else {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}


def _start(program: Path, stack: ExitStack, tried: list[str]) -> str | None:
    def command(port: int) -> list[str]:
        # obstore may use a newer version of the protocol than Azurite lists.
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
        return [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]

    def answers(port: int) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    port = started("azurite", command, answers, stack, tried, **_with_node(node_folder(tried)))
    return None if port is None else f"http://127.0.0.1:{port}/{ACCOUNT}"
