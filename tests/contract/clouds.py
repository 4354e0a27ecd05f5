"""How Google and Azure answer, and stores that ask a server in their place."""

from __future__ import annotations

from dataclasses import dataclass

from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.handlers.lease.conditional import (
    IfAbsent,
)
from tests.servers.faulty_http import FaultyServer, Reply

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
MODIFIED = ("Last-Modified", "Sat, 21 Nov 2026 15:00:00 GMT")
BROKEN = ["reset-unread", "reset", "silence", "half-head"]
ABSENT = IfAbsent()


@dataclass(frozen=True, slots=True)
class Cloud:
    """How one of the two answers."""

    uri: str
    before: str
    after: str
    no_object: str
    no_bucket: str
    slow_down: str

    def done(self, version: str | None = None, body: bytes = b"", fault: str = "none") -> Reply:
        """A 200 as the cloud sends it to a write and to a read."""
        version = self.after if version is None else version
        tags = (("ETag", '"any"'), ("x-goog-generation", version)) if self is GOOGLE else (("ETag", version),)
        return Reply(200, (*tags, MODIFIED), body, fault)  # type: ignore[arg-type]

    def store(self, server: FaultyServer, seconds: float = 5.0) -> CloudStore:
        return CloudStore(self.uri, request_timeout_seconds=seconds, endpoint=self.endpoint(server.endpoint))

    def endpoint(self, server: str) -> str:
        return server if self is GOOGLE else f"{server}/account"


GOOGLE = Cloud(
    "gs://bucket/locks/t.json",
    "1795275010399894",
    "1795275010400011",
    "NoSuchKey",
    "NoSuchBucket",
    "SlowDown",
)
AZURE = Cloud(
    "az://container/locks/t.json",
    '"0x8DE28F3A1B2C3D4"',
    '"0x8DE28F3A1B2C3D5"',
    "BlobNotFound",
    "ContainerNotFound",
    "ServerBusy",
)


def error(status: int, code: str = "") -> Reply:
    named = f"<Code>{code}</Code>" if code else ""
    return Reply(
        status, body=f'<?xml version="1.0"?>\n<Error>{named}<Message>said\nso</Message></Error>'.encode()
    )


@dataclass(frozen=True, slots=True)
class Real:
    """A bucket on one of the real servers."""

    uri: str
    server: str
    path: str
    """Of the endpoint."""

    def open(self, server: str | None = None, seconds: float = 5.0) -> CloudStore:
        endpoint = (server or self.server) + self.path
        return CloudStore(self.uri, request_timeout_seconds=seconds, endpoint=endpoint)
