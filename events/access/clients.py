"""The options as arguments of aiokafka's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient

from lakewarden.events.access.files import FromFiles, RotatingContext, password_file, tls_context
from lakewarden.events.access.options import OAUTH, Access
from lakewarden.events.access.tokens import tokens

IDLE_SECONDS = 30.0
"""After which a client closes a connection that it doesn't use. Load balancers and NATs drop idle connections without a word,
most after minutes, and a request on a dropped one gets no answer. A new connection costs milliseconds."""

PRODUCE_SECONDS = 5.0
"""For the answer to a request of a producer, at most half its timeout. Then it repeats the request on a new connection."""


def check_files(access: Access, name: Callable[[str], str] = str) -> None:
    """Raise `AccessError` if a file can't be used, or the token provider not be imported. Requests no token."""
    if access.uses_tls:
        tls_context(access, name)
    if access.uses_sasl and access.sasl_mechanism == OAUTH:
        tokens(access)
    elif access.uses_sasl:
        password_file(access, name("sasl_password_file"))


def client_arguments(access: Access, objects: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a client. `objects` are the caller's own. Pass the client to `read_password_again`, too."""
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
    connections = client.client if hasattr(client, "client") else client._client  # noqa: SLF001
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
