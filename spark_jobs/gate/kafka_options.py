"""What `kafka=` of a gate may contain: one place for the arguments of all Kafka clients of a writer. docs/writers.md lists them.

What else aiokafka's clients accept is decided by the gate (`acks`, offsets, groups, timeouts): naming it is an error.
"""

import dataclasses
import inspect
import ssl
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from lakewarden.events.access import (
    Access,
    AccessError,
    client_arguments,
    guarded_provider,
    read_password_again,
    token_problem,
)
from lakewarden.spark_jobs.gate.errors import InvalidKafkaOptions

KafkaSettings: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""The options, or a function that returns them.

An `ssl_context` doesn't pickle, so executors need the function. It is called where the client is created.
"""

WRITER_CLIENT_ID = "lakewarden-writer"
EXECUTOR_CLIENT_ID = "lakewarden-executor"

_ACCESS = tuple(each.name for each in dataclasses.fields(Access))
_AIOKAFKA_NAMES = {"sasl_plain_username": "sasl_username", "sasl_plain_password": "sasl_password"}
_OBJECTS = ("ssl_context", "sasl_oauth_token_provider")
_PASSED_ON = ("client_id", "connections_max_idle_ms", "metadata_max_age_ms", "retry_backoff_ms")
_KNOWN = (*_ACCESS, *_AIOKAFKA_NAMES, *_OBJECTS, *_PASSED_ON, "compression_type")
_INSTEAD = {
    "bootstrap_servers": "pass the brokers as the gate's first argument",
    "request_timeout_ms": "use the gate's send_timeout_seconds",
    "sasl_kerberos_service_name": "Kerberos isn't supported (docs/security.md)",
    "sasl_kerberos_domain_name": "Kerberos isn't supported (docs/security.md)",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ClientOptions:
    """Valid options."""

    access: Access
    objects: Mapping[str, Any] = dataclasses.field(repr=False)
    passed_on: Mapping[str, Any]
    compression_type: str | None

    def arguments(self, client_id: str) -> dict[str, Any]:
        """Keyword arguments for any of aiokafka's clients. Pass the client to `read_password_again`, too."""
        own = dict(self.objects)
        provider = own.get("sasl_oauth_token_provider")
        if provider is not None:
            own["sasl_oauth_token_provider"] = guarded_provider(provider)
        access = client_arguments(self.access, objects=own)
        return {"client_id": client_id, **access, **self.passed_on}

    def token_problem(self) -> str | None:
        """Why the source of tokens returned none the last time, if it did. aiokafka reports only that it can't connect."""
        return token_problem(self.access) if not self.objects else None

    def read_password_again(self, client: Any) -> None:
        """Let the client read its password's file at each connect."""
        read_password_again(client, self.access)


def client_options(kafka: KafkaSettings | None) -> ClientOptions:
    """Check the options; call the function that returns them. Raises `InvalidKafkaOptions`."""
    given = dict(kafka()) if callable(kafka) else dict(kafka or {})
    for name in given:
        if name not in _KNOWN:
            raise InvalidKafkaOptions(f"kafka option {name!r} {_why_refused(str(name))}")
    objects = {name: given.pop(name) for name in _OBJECTS if given.get(name) is not None}
    passed_on = {name: given.pop(name) for name in _PASSED_ON if name in given}
    compression = given.pop("compression_type", None)
    for name in _OBJECTS:
        given.pop(name, None)
    for name, option in _AIOKAFKA_NAMES.items():
        if name in given:
            if option in given:
                raise InvalidKafkaOptions(f"kafka options {name} and {option} are the same; remove one")
            given[option] = given.pop(name)
    try:
        access = Access(**given)
        access.check(objects=objects)
    except AccessError as error:
        raise InvalidKafkaOptions(f"kafka options: {error}") from None
    _check_objects(objects, compression)
    return ClientOptions(access, objects, passed_on, compression)


def _check_objects(objects: Mapping[str, Any], compression: object) -> None:
    context = objects.get("ssl_context")
    if context is not None and not isinstance(context, ssl.SSLContext):
        raise InvalidKafkaOptions("kafka option ssl_context must be an ssl.SSLContext")
    provider = objects.get("sasl_oauth_token_provider")
    if provider is not None and not callable(getattr(provider, "token", None)):
        raise InvalidKafkaOptions("kafka option sasl_oauth_token_provider must have a method token")
    if compression not in (None, "gzip", "snappy", "lz4", "zstd"):
        raise InvalidKafkaOptions("kafka option compression_type must be gzip, snappy, lz4 or zstd")


def _why_refused(name: str) -> str:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    if name in _INSTEAD:
        return f"can't be set: {_INSTEAD[name]}"
    if any(name in inspect.signature(client).parameters for client in (AIOKafkaProducer, AIOKafkaConsumer)):
        return "can't be set: the gate's guarantees depend on its own value"
    near = get_close_matches(name, _KNOWN, n=1)
    return "is unknown" + (f"; did you mean {near[0]}?" if near else "; docs/writers.md lists the options")
