"""No secret in a `repr`, an error, a log line or a pickle other than that of Spark's closure: tests with planted secrets."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import pickle
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

import lakewarden.agent
import lakewarden.events
import lakewarden.events.access
import lakewarden.handlers
import lakewarden.spark_jobs
from lakewarden.agent.errors import AgentError, SettingsError
from lakewarden.agent.kafka import producer, start_client
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.events.access import Access, AccessError, TokenError, client_arguments
from lakewarden.events.access.tokens import ClientCredentials
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.gate.kafka_options import client_options

SECRET = "planted-hunter2"
PACKAGES = (
    lakewarden.events.access,
    lakewarden.agent,
    lakewarden.events,
    lakewarden.handlers,
    lakewarden.spark_jobs,
)
HEAVY = ("lakewarden.spark_jobs.jobs", "__main__")
SUSPECT = re.compile(r"password$|secret$|credential|^kafka$|^objects$|^options$|_key$")
HARMLESS = {
    "lakewarden.agent.stores.cloud._Cloud.credentials",  # the names of variables, for an error's advice
    "lakewarden.agent.stores.s3.S3Options.kms_key",  # the id of a key, which isn't the key
    "lakewarden.handlers.paimon.primary_key.PrimaryKeyTable.primary_key",  # names of columns
    "lakewarden.handlers.paimon.snapshots.TableLayout.has_primary_key",
    "lakewarden.spark_jobs.sinks.releases.Spark.kafka",  # a version
}
USER = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "me", "sasl_password": SECRET}


@pytest.fixture(autouse=True)
def _logs_no_secret(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO), structlog.testing.capture_logs() as lines:
        yield
    assert SECRET not in caplog.text
    assert SECRET not in repr(lines)


def _modules() -> Iterator[Any]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(HEAVY) and not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def test_every_field_that_may_hold_a_secret_stays_out_of_its_repr() -> None:
    classes = {each for module in _modules() for each in vars(module).values() if isinstance(each, type)}
    shown, checked = [], 0
    for each in sorted(classes, key=lambda each: f"{each.__module__}.{each.__qualname__}"):
        if dataclasses.is_dataclass(each) and each.__module__.startswith("lakewarden"):
            for field in dataclasses.fields(each):
                if SUSPECT.search(field.name):
                    checked += 1
                    shown += [f"{each.__module__}.{each.__qualname__}.{field.name}"] if field.repr else []

    assert set(shown) == HARMLESS
    assert checked >= 4


def test_every_setting_that_is_a_secret_is_hidden_and_the_others_name_files() -> None:
    for name, field in Settings.model_fields.items():
        if SUSPECT.search(name):
            assert field.annotation == SecretStr | None, name


def test_settings_show_no_secret() -> None:
    for settings in (_settings(KafkaSettings), _settings(Settings)):
        shown = (repr(settings), str(settings), settings.model_dump_json(), f"{settings.model_dump()}")

        assert not any(SECRET in each for each in shown)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka_sasl_mechanism": SECRET[:5]},
        {"kafka_sasl_username": None},
        {"kafka_sasl_password_file": "/also"},
        {"session_timeout_seconds": -1},
        {"kafka_oauth_token_url": "x"},
    ],
)
def test_the_error_of_a_setting_shows_no_other_settings_value(wrong: dict[str, Any], tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_username": "me",
        "kafka_sasl_password": SECRET,
        **wrong,
    }
    if "kafka_oauth_token_url" in wrong:
        values["kafka_sasl_mechanism"] = "OAUTHBEARER"
    config = tmp_path / "lakewarden.toml"
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value))

    with pytest.raises(SettingsError) as caught:
        Settings.load(config)

    assert SECRET not in _all_texts(caught.value)


def test_a_file_that_is_no_toml_is_reported_without_its_content(tmp_path: Path) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text(f"kafka_sasl_password = {SECRET}\n")

    with pytest.raises(SettingsError) as caught:
        Settings.load(config)

    assert SECRET not in _all_texts(caught.value)


async def test_what_the_options_become_shows_no_secret() -> None:
    access = Access(**USER)
    options = client_options(USER)

    assert SECRET not in repr(access)
    assert SECRET not in repr(options)
    assert client_arguments(access)["sasl_plain_password"] == SECRET


def test_a_gate_shows_no_secret() -> None:
    """On Spark Connect it pickles into the query's function, as its channels do into Spark's closure."""
    with (
        CommitGate("localhost:1", kafka=USER) as gate,
        pickle.loads(pickle.dumps(gate)) as again,  # noqa: S301 - its own bytes
    ):
        for each in (gate, again):
            assert SECRET not in repr(each)
            assert SECRET not in repr(each._channel)
            assert each._channel.kafka == USER


def test_a_channel_of_executors_shows_no_secret() -> None:
    channel = ExecutorChannel("localhost:1", "p", "file:///t", "t", "w", USER)

    assert SECRET not in repr(channel)
    assert pickle.loads(pickle.dumps(channel)).kafka == USER  # noqa: S301 - its own bytes


def test_the_error_of_a_writer_without_kafka_shows_no_secret() -> None:
    with (
        CommitGate("127.0.0.1:1", kafka=USER, send_timeout_seconds=1.0) as gate,
        pytest.raises(GateError) as caught,
        gate.transaction(table="file:///t", writer="w"),
    ):
        pass

    assert SECRET not in _all_texts(caught.value)


async def test_the_error_of_an_agent_without_kafka_shows_no_secret() -> None:
    settings = _settings(KafkaSettings)
    client = producer(settings)

    with pytest.raises(AgentError) as caught:
        await start_client(client, settings)

    assert SECRET not in _all_texts(caught.value)


def test_a_client_secret_is_in_no_error_of_a_token_endpoint(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    access = Access(
        oauth_token_url="http://127.0.0.1:1/token",
        oauth_client_id="me",
        oauth_client_secret_file=str(tmp_path / "secret"),
    )

    with pytest.raises(TokenError) as caught:
        ClientCredentials(access).token()

    assert SECRET not in _all_texts(caught.value)


def test_the_content_of_a_key_is_in_no_error(tmp_path: Path) -> None:
    for name in ("certificate", "key"):
        (tmp_path / name).write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n")

    with pytest.raises(AccessError) as caught:
        client_arguments(
            Access(
                security_protocol="SSL",
                ssl_certfile=str(tmp_path / "certificate"),
                ssl_keyfile=str(tmp_path / "key"),
            )
        )

    assert SECRET not in _all_texts(caught.value)


def _settings(kind: type[KafkaSettings]) -> KafkaSettings:
    return kind(
        bootstrap_servers="127.0.0.1:1",
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_username="me",
        kafka_sasl_password=SecretStr(SECRET),
    )


def _all_texts(error: BaseException | None) -> str:
    """The texts of an error and its causes, as a traceback prints them."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)
