"""The options in `kafka=` of a gate: each is checked before anything connects, and each wrong one has a named error."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from lakewarden.spark_jobs import GateError
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import InvalidKafkaOptions
from lakewarden.spark_jobs.gate.kafka_options import client_options

USER = {"security_protocol": "SASL_SSL", "sasl_username": "me", "sasl_password": "hush-hush"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"request_timeout_ms": 5}, "'request_timeout_ms' can't be set: use the gate's send_timeout_seconds"),
        ({"acks": 1}, "'acks' can't be set: the gate's guarantees depend on its own value"),
        ({"linger_ms": 5}, "'linger_ms' can't be set"),
        ({"group_id": "g"}, "'group_id' can't be set"),
        ({"client_rack": "a"}, "'client_rack' can't be set"),
        ({"bootstrap_servers": "b:1"}, "'bootstrap_servers' can't be set: pass the brokers as"),
        ({"sasl_pasword": "hush-hush"}, "'sasl_pasword' is unknown; did you mean sasl_password?"),
        ({"zzz": 1}, "'zzz' is unknown; docs/writers.md lists the options"),
        ({**USER, "sasl_plain_username": "you"}, "sasl_plain_username and sasl_username are the same"),
        ({**USER, "sasl_mechanism": "GSSAPI"}, "sasl_mechanism must be one of"),
        ({**USER, "ssl_context": "tls"}, "ssl_context must be an ssl.SSLContext"),
        ({"compression_type": "brotli"}, "compression_type must be gzip"),
        ({"sasl_oauth_token_provider": 5}, "must have a method token"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_gate_that_names_it(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidKafkaOptions) as caught:
        CommitGate("localhost:1", kafka=options)

    assert isinstance(caught.value, GateError)
    assert why in str(caught.value)
    assert "hush-hush" not in str(caught.value)


async def test_aiokafkas_own_names_are_accepted() -> None:
    arguments = client_options(
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "me",
            "sasl_plain_password": "hush",
            "retry_backoff_ms": 50,
        }
    ).arguments("an-id")

    assert arguments == {
        "client_id": "an-id",
        "connections_max_idle_ms": 30_000,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "hush",
        "retry_backoff_ms": 50,
    }


def test_an_ssl_context_of_the_callers_own_is_used_as_it_is() -> None:
    context = ssl.create_default_context()

    arguments = client_options({"security_protocol": "SSL", "ssl_context": context}).arguments("an-id")

    assert arguments["ssl_context"] is context


def test_the_callers_client_id_replaces_the_default() -> None:
    assert client_options({"client_id": "team-a"}).arguments("lakewarden-writer")["client_id"] == "team-a"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"security_protocol": "SSL", "ssl_cafile": "/none.pem"}, r"ssl_cafile=/none\.pem can't be read"),
        (lambda: {"acks": 1}, "'acks' can't be set"),
    ],
    ids=["a missing file", "a function"],
)
def test_what_the_machine_that_connects_decides_is_no_error_of_the_constructor(
    options: Any, why: str
) -> None:
    """The gate's driver may have no such file, and its executors may. A function is called for each client."""
    with (
        CommitGate("localhost:1", kafka=options) as gate,
        pytest.raises(InvalidKafkaOptions, match=why),
        gate.transaction(table="file:///t", writer="w"),
    ):
        pass
