"""The options as arguments of aiokafka's clients."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from lakewarden.events.access.codes import know_newer_codes
from lakewarden.events.access.files import FromFiles, RotatingContext, password_file, read_secret, tls_context
from lakewarden.events.access.options import OAUTH, Access
from lakewarden.events.access.tokens import tokens

IDLE_SECONDS = 30.0
"""After which a client closes a connection that it doesn't use. Load balancers and NATs drop idle connections without a word,
most after minutes, and a request on a dropped one gets no answer. A new connection costs milliseconds."""

STOP_SECONDS = 1.0
"""For a client to close its connections."""
PRODUCE_SECONDS = 5.0
"""For the answer to a request of a producer, at most half its timeout. Then it repeats the request on a new connection."""


def check_files(access: Access, name: Callable[[str], str] = str) -> None:
    """Raise `AccessError` if a file can't be used, or the token provider not be imported. Requests no token."""
    if access.uses_tls:
        tls_context(access, name)
    if access.uses_sasl and access.sasl_mechanism == OAUTH:
        tokens(access)
        if access.oauth_token_file is not None:
            read_secret(name("oauth_token_file"), access.oauth_token_file)
    elif access.uses_sasl:
        password_file(access, name("sasl_password_file"))


def client_arguments(access: Access, objects: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a client. `objects` are the caller's own. Pass the client to `read_password_again`, too."""
    know_newer_codes()
    own = objects or {}
    arguments: dict[str, Any] = {
        "security_protocol": access.security_protocol,
        "connections_max_idle_ms": round(IDLE_SECONDS * 1000),
    }
    if access.uses_tls:
        arguments["ssl_context"] = own.get("ssl_context") or RotatingContext(access)
    if access.uses_sasl:
        arguments["sasl_mechanism"] = access.sasl_mechanism
        if access.sasl_mechanism == OAUTH:
            arguments["sasl_oauth_token_provider"] = own.get("sasl_oauth_token_provider") or tokens(access)
        else:
            password = password_file(access)
            arguments["sasl_plain_username"] = access.sasl_username
            arguments["sasl_plain_password"] = (
                access.sasl_password if password is None else password.current()
            )
    return arguments


def token_problem(access: Access) -> str | None:
    """Why there was no token at the last connect, or None."""
    return tokens(access).problem if access.uses_sasl and access.sasl_mechanism == OAUTH else None


def read_password_again(client: Any, access: Access) -> None:
    """Let a producer, consumer or admin client read `sasl_password_file` at each connect.

    aiokafka takes a password once and has no hook for another one, so the class of its inner client is replaced.
    """
    if not access.uses_sasl or access.sasl_mechanism == OAUTH or (password := password_file(access)) is None:
        return
    connections = connections_of(client)
    connections.__class__ = _ReadsPassword
    connections.password = password


def repeat_requests(client: Any) -> None:
    """Let a started producer repeat a request that gets no answer, within the time in which its record must be acknowledged.

    By default aiokafka waits for the answer for all of that time. A connection that was dropped would fail the record. The
    producers are idempotent, so the broker keeps a repeated record once.
    """
    if isinstance(client, AIOKafkaProducer):
        connections = client.client
        milliseconds = min(round(PRODUCE_SECONDS * 1000), connections._request_timeout_ms // 2)  # noqa: SLF001
        connections._request_timeout_ms = milliseconds  # noqa: SLF001 - aiokafka has one option for both times
        for each in connections._conns.values():  # noqa: SLF001
            each._request_timeout = milliseconds / 1000  # noqa: SLF001


class _ReadsPassword(AIOKafkaClient):  # type: ignore[misc]
    password: FromFiles[str]

    @property
    def _sasl_plain_password(self) -> str:
        return self.password.current()


async def stop_client(client: Any, seconds: float = STOP_SECONDS) -> None:
    """Close a client in any state, within twice `seconds`, also while the calling task is being cancelled.

    `stop` runs in a task of its own. A consumer that waits to retry a fetch, as after the loss of its broker, lets the
    cancellation of that fetch escape from `stop`; in the caller's task it would be a cancellation of the caller.
    """
    stop = client.stop if hasattr(client, "stop") else client.close  # of an admin client
    stopping = asyncio.ensure_future(stop())
    with anyio.move_on_after(seconds, shield=True):
        await asyncio.wait([stopping])
    if stopping.cancel() or stopping.cancelled():
        # `stop` ended before it closed them, and has cancelled what a second close waits for.
        background = _cancelled_tasks(client)
        stopping = asyncio.ensure_future(connections_of(client).close())
        with anyio.move_on_after(seconds, shield=True):
            await asyncio.wait([stopping, *background])
    if not stopping.cancel() and not stopping.cancelled():
        with suppress(KafkaError, OSError):
            stopping.result()


def _cancelled_tasks(client: Any) -> list[asyncio.Task[Any]]:
    """Cancel the tasks that an interrupted `stop` has left. Python logs each task that is destroyed unfinished as an error.

    A producer without a broker has three: they send, repeat a request, and wait for the records. aiokafka has no list of its
    tasks. Each runs a method of a part of the client.
    """
    parts = [part for part in (client, *vars(client).values()) if part is not None]
    tasks = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        owner = frame and frame.f_locals.get("self")
        if any(owner is part for part in parts):
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            task.cancel()
            tasks.append(task)
    return tasks


def connections_of(client: Any) -> Any:
    """The inner client of a producer, consumer or admin client, which aiokafka has no public name for."""
    return client.client if isinstance(client, AIOKafkaProducer) else client._client  # noqa: SLF001


@lru_cache(maxsize=1024)
def partition_of(table: str, partitions: int) -> int:
    """The Kafka partition of a table, of so many: Kafka's default partitioner, with the table's URI as key."""
    return int(DefaultPartitioner()(table.encode(), range(partitions), ()))
