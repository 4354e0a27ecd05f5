"""A server that speaks Google Cloud Storage for tests: fake-gcs-server, with a front for what it doesn't speak.

obstore writes through Google's XML API: `PUT /bucket/key` with the header `x-goog-if-generation-match`.
fake-gcs-server answers 400 to any such PUT (v1.56.1: only signed ones pass, and those ignore the condition), while it
honours the same condition in the JSON API, where the query `ifGenerationMatch` carries it. The front turns the one into
the other, the answer's generation back into headers and errors back into XML. It decides nothing: what wins
and what loses is decided by fake-gcs-server, under its own lock.

The program comes from the PATH, from the cache, or is built into it with `go install` (about 80 s, once).
"""

from __future__ import annotations

import http.client
import itertools
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode

from tests.servers.program import NoServerError, built_by_go, free_port, spawn, stop

_NAME: Final = "fake-gcs-server"
_MODULE: Final = "github.com/fsouza/fake-gcs-server"
_VERSION: Final = "v1.56.1"
_START_SECONDS: Final = 30
_START_ATTEMPTS: Final = 3
_REQUEST_SECONDS: Final = 10
_CODES: Final = {404: "NoSuchBucket", 412: "PreconditionFailed"}
"""Google's codes for what can befall a write; fake-gcs-server sends JSON."""
_PASSED_ON: Final = ("content-type", "etag", "last-modified", "x-goog-generation")


@dataclass(frozen=True, slots=True)
class GcsServer:
    """A running server, where it is and how to open it."""

    endpoint: str
    bare: str
    """fake-gcs-server itself, without the front."""
    used: str
    environment: Mapping[str, str] = field(default_factory=lambda: {"GOOGLE_BEARER_TOKEN": "any"})
    """It takes any token."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    def bucket(self) -> str:
        """A fresh bucket's name."""
        name = f"lakewarden-{uuid.uuid4().hex[:12]}-{next(self._numbers)}"
        status, _, body = _ask(
            self.bare, "POST", "/storage/v1/b?project=tests", json.dumps({"name": name}).encode()
        )
        assert status == 200, body
        return name


@contextmanager
def running_gcs_server() -> Iterator[GcsServer]:
    """A server for as long as the block runs; a process started here dies with this one, whatever kills it."""
    tried: list[str] = []
    binary = built_by_go(_NAME, _MODULE, _VERSION, tried)
    with ExitStack() as stack:
        bare = None if binary is None else _start(binary, stack, tried)
        if bare is None:
            raise NoServerError(f"no gcs server for the tests; set it up by hand: {'; '.join(tried)}")
        front = ThreadingHTTPServer(("127.0.0.1", 0), type("Front", (_Front,), {"bare": bare}))
        front.daemon_threads = True
        thread = threading.Thread(target=front.serve_forever, name="gcs-front", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(front.server_close)
        stack.callback(front.shutdown)
        yield GcsServer(
            f"http://127.0.0.1:{front.server_port}", bare, f"{_NAME} {_VERSION} behind an XML front: {binary}"
        )


def prepare_gcs_server() -> None:
    """Build it where it has to be built, for a moment when no test's timeout runs."""
    built_by_go(_NAME, _MODULE, _VERSION, [])


def _start(binary: Path, stack: ExitStack, tried: list[str]) -> str | None:
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakewarden-gcs-"))) / "log"
    for _ in range(_START_ATTEMPTS):
        port = free_port()
        address = f"127.0.0.1:{port}"
        command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        process = spawn([*command, "-backend", "memory", "-public-host", address], {}, log)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                _ask(f"http://{address}", "GET", "/storage/v1/b?project=tests")
            except OSError:
                time.sleep(0.05)
            else:
                stack.callback(stop, process)
                return f"http://{address}"
        stop(process)
    tried.append(f"{_NAME}: did not start: {log.read_text(errors='replace')[-300:].strip()}")
    return None


def _ask(
    server: str, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=_REQUEST_SECONDS)
    try:
        connection.request(method, path, body, {"content-type": content_type})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def _error(code: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>".encode()


class _Front(BaseHTTPRequestHandler):
    """Google's XML API as far as obstore uses it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bare = ""

    def do_PUT(self) -> None:
        bucket, _, key = self.path.removeprefix("/").partition("/")
        query = {"uploadType": "media", "name": unquote(key)}
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        body = self.rfile.read(int(self.headers["content-length"]))
        status, headers, answer = _ask(
            self.bare,
            "POST",
            f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}",
            body,
            self.headers["content-type"],
        )
        if status != 200:
            self._answer(status, headers, _error(_CODES.get(status, "InvalidArgument")))
            return
        told = json.loads(answer)
        self._answer(200, {"etag": f'"{told["etag"]}"', "x-goog-generation": told["generation"]}, b"")

    def do_GET(self) -> None:
        status, headers, answer = _ask(self.bare, "GET", self.path)
        if status == 404:
            bucket = self.path.split("/")[1]
            there = _ask(self.bare, "GET", f"/storage/v1/b/{bucket}")[0] == 200
            answer = _error("NoSuchKey" if there else "NoSuchBucket")
        self._answer(status, headers, answer)

    def do_DELETE(self) -> None:
        self._answer(*_ask(self.bare, "DELETE", self.path))

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name in _PASSED_ON:
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the overridden method's name for it
        """Not to stderr."""
