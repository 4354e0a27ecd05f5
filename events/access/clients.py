"""The options as arguments of aiokafka's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient

from lakewarden.events.access.files import FromFiles, RotatingContext, password_file, tls_context
from lakewarden.events.access.options import OAUTH, Access
from lakewarden.events.access.tokens import tokens


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
    arguments: dict[str, Any] = {"security_protocol": access.security_protocol}
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


class _ReadsPassword(AIOKafkaClient):  # type: ignore[misc]
    password: FromFiles[str]

    @property
    def _sasl_plain_password(self) -> str:
        return self.password.current()
