"""A token endpoint in a thread, for the grant type `client_credentials`."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus

CLIENT = "the client"
Issue = Callable[[str], str]


@dataclass
class TokenEndpoint:
    """What the endpoint expects and answers. A test changes it while it runs."""

    secrets: dict[str, str]
    issue: Issue
    lifetime: float = 300.0
    answer: tuple[int, bytes] | None = None
    """In place of a token."""
    redirect: str | None = None
    requests: list[dict[str, list[str]]] = field(default_factory=list)
    url: str = ""


@contextmanager
def token_endpoint(secrets: dict[str, str], issue: Issue) -> Iterator[TokenEndpoint]:
    """Serve tokens to these clients. `issue` makes a token for a client."""
    endpoint = TokenEndpoint(secrets, issue)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            endpoint.requests.append(form)
            if endpoint.redirect is not None:
                self._send(302, b"", Location=endpoint.redirect)
                return
            if endpoint.answer is not None:
                self._send(*endpoint.answer)
                return
            scheme, _, encoded = self.headers["Authorization"].partition(" ")
            client, _, secret = base64.b64decode(encoded).decode().partition(":")
            known = endpoint.secrets.get(unquote_plus(client))
            if (scheme, unquote_plus(secret)) != ("Basic", known) or form["grant_type"] != [
                "client_credentials"
            ]:
                self._send(401, b'{"error": "invalid_client", "error_description": "%s"}' % secret.encode())
                return
            token = endpoint.issue(unquote_plus(client))
            self._send(200, json.dumps({"access_token": token, "expires_in": endpoint.lifetime}).encode())

        def _send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}/token"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
