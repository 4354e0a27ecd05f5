"""A Google Cloud Storage server for tests: fake-gcs-server behind a front that translates requests.

obstore writes with Google's XML API: `PUT /bucket/key` with the header `x-goog-if-generation-match`. fake-gcs-server (v1.56.1)
answers 400 to such a PUT, or ignores the condition if the PUT is signed. But it honours the same condition in the JSON API, as
the query parameter `ifGenerationMatch`. The front translates the XML request into a JSON request, and the answer's generation
and errors back into headers and XML. fake-gcs-server alone decides, under its own lock, which write wins.

The program comes from the PATH, from the cache, or from `go install` into the cache (about 80 s, once).
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode

from tests.servers.program import NoServerError, built_by_go, new_name, started

_NAME: Final = "fake-gcs-server"
_MODULE: Final = "github.com/fsouza/fake-gcs-server"
_VERSION: Final = "v1.56.1"
_REQUEST_SECONDS: Final = 10
_CODES: Final = {404: "NoSuchBucket", 412: "PreconditionFailed"}
"""Google's codes for the errors of a write; fake-gcs-server sends JSON instead."""
_PASSED_ON: Final = ("content-type", "etag", "last-modified", "x-goog-generation")


@dataclass(frozen=True, slots=True)
class GcsServer:
    """A running server: its endpoint and its credentials."""

    endpoint: str
    backend: str
    """The address of fake-gcs-server itself, without the front."""
    used: str
    environment: Mapping[str, str] = field(default_factory=lambda: {"GOOGLE_BEARER_TOKEN": "any"})
    """The server accepts any token."""

    def bucket(self) -> str:
        """Create a bucket; returns its name."""
        name = new_name()
        status, _, body = _request(
            self.backend, "POST", "/storage/v1/b?project=tests", json.dumps({"name": name}).encode()
        )
        assert status == 200, body
        return name


@contextmanager
def running_gcs_server() -> Iterator[GcsServer]:
    """Run a server during the block. Its process ends with this one, even after SIGKILL."""
    tried: list[str] = []
    binary = built_by_go(_NAME, _MODULE, _VERSION, tried)
    with ExitStack() as stack:
        backend = None if binary is None else _start(binary, stack, tried)
        if backend is None:
            raise NoServerError(
                f"no Google Cloud Storage server for the tests; install {_NAME} by hand: {'; '.join(tried)}"
            )
        front = ThreadingHTTPServer(("127.0.0.1", 0), type("Front", (_Front,), {"backend": backend}))
        front.daemon_threads = True
        thread = threading.Thread(target=front.serve_forever, name="gcs-front", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(front.server_close)
        stack.callback(front.shutdown)
        yield GcsServer(
            f"http://127.0.0.1:{front.server_port}",
            backend,
            f"{_NAME} {_VERSION} behind an XML front: {binary}",
        )


def prepare_gcs_server() -> None:
    """Build the server if necessary, before the first test's timeout starts."""
    built_by_go(_NAME, _MODULE, _VERSION, [])


def _start(binary: Path, stack: ExitStack, tried: list[str]) -> str | None:
    def command(port: int) -> list[str]:
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        return [str(binary), *address, "-backend", "memory", "-public-host", f"127.0.0.1:{port}"]

    def answers(port: int) -> bool:
        with suppress(OSError):
            _request(f"http://127.0.0.1:{port}", "GET", "/storage/v1/b?project=tests")
            return True
        return False

    port = started(_NAME, command, answers, stack, tried)
    return None if port is None else f"http://127.0.0.1:{port}"


def _request(
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
    """The part of Google's XML API that obstore uses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    backend = ""

    def do_PUT(self) -> None:
        bucket, _, key = self.path.removeprefix("/").partition("/")
        query = {"uploadType": "media", "name": unquote(key)}
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        body = self.rfile.read(int(self.headers["content-length"]))
        status, headers, answer = _request(
            self.backend,
            "POST",
            f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}",
            body,
            self.headers["content-type"],
        )
        if status != 200:
            self._send(status, headers, _error(_CODES.get(status, "InvalidArgument")))
            return
        written = json.loads(answer)
        self._send(200, {"etag": f'"{written["etag"]}"', "x-goog-generation": written["generation"]}, b"")

    def do_GET(self) -> None:
        self._pass_on("GET")

    def do_DELETE(self) -> None:
        self._pass_on("DELETE")

    def _pass_on(self, method: str) -> None:
        status, headers, answer = _request(self.backend, method, self.path)
        if status == 404:
            bucket = self.path.split("/")[1]
            bucket_exists = _request(self.backend, "GET", f"/storage/v1/b/{bucket}")[0] == 200
            answer = _error("NoSuchKey" if bucket_exists else "NoSuchBucket")
        self._send(status, headers, answer)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name in _PASSED_ON:
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the overridden method's name for it
        """Log nothing to stderr."""
