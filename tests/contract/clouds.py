"""The answers of Google, Azure and S3, and stores that connect to a test server instead."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.handlers.lease.conditional import IfAbsent
from tests.servers.faulty_http import FaultyServer, Reply

Outcome = TypeVar("Outcome")

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
MODIFIED = ("Last-Modified", "Sat, 21 Nov 2026 15:00:00 GMT")
BROKEN = ["reset-unread", "reset", "close", "silence", "half-head"]
UNANSWERED = {"silence", "hang"}
"""Faults that only the client's timeout ends."""
ABSENT = IfAbsent()

PATIENT_SECONDS = 60.0
"""For requests that the server answers. The limit only ends a hang."""
SHORT_SECONDS = 0.4
"""For requests that the server never answers."""


async def call_until_received(
    server: FaultyServer, call: Callable[[], Awaitable[Outcome]]
) -> tuple[list[Outcome], int]:
    """Repeat a call with a short timeout until the server has received it; returns the outcomes and the number received.

    On a busy machine the timeout may end before the request was sent, and then nothing has been tested.
    """
    received_before = len(server.received)
    outcomes = [await call()]
    while len(server.received) == received_before:
        outcomes.append(await call())
    return outcomes, len(server.received) - received_before


@dataclass(frozen=True, slots=True)
class Cloud:
    """The answers of one cloud."""

    uri: str
    before: str
    after: str
    no_object: str
    no_bucket: str
    slow_down: str

    def done(self, version: str | None = None, body: bytes = b"", fault: str = "none") -> Reply:
        """The 200 that the cloud sends for a write and for a read."""
        version = self.after if version is None else version
        tags = (("ETag", '"any"'), ("x-goog-generation", version)) if self is GOOGLE else (("ETag", version),)
        return Reply(200, (*tags, MODIFIED), body, fault)  # type: ignore[arg-type]

    def store(self, server: FaultyServer, seconds: float = PATIENT_SECONDS) -> CloudStore | S3Store:
        if self is S3:
            return S3Store(S3Options(endpoint_url=server.endpoint), request_timeout_seconds=seconds)
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

S3 = Cloud(
    "s3://bucket/locks/t.json",
    '"0cc175b9c0f1b6a831c399e269772661"',
    '"9dd4e461268c8034f5c8564e155c67a6"',
    "NoSuchKey",
    "NoSuchBucket",
    "SlowDown",
)


def error(status: int, code: str = "") -> Reply:
    named = f"<Code>{code}</Code>" if code else ""
    return Reply(
        status, body=f'<?xml version="1.0"?>\n<Error>{named}<Message>two\nlines</Message></Error>'.encode()
    )


@dataclass(frozen=True, slots=True)
class RealBucket:
    """A bucket on one of the emulators."""

    uri: str
    server: str
    path: str
    """The endpoint's path."""

    def open(self, server: str | None = None, seconds: float = PATIENT_SECONDS) -> CloudStore:
        endpoint = (server or self.server) + self.path
        return CloudStore(self.uri, request_timeout_seconds=seconds, endpoint=endpoint)
