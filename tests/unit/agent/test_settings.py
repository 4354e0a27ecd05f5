"""The settings: defaults, sources, and the errors of invalid values."""

import os
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent import variables
from lakewarden.agent.errors import SettingsError
from lakewarden.agent.settings import KafkaSettings, Settings


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings of the test run's own environment."""
    for name in [name for name in os.environ if name.startswith("LAKEWARDEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKEWARDEN_CONFIG", "")


def test_defaults_are_those_of_the_design_document() -> None:
    settings = Settings.load()

    assert (settings.validity_seconds, settings.renew_seconds, settings.drift_seconds) == (30, 3, 0.5)
    hudi = settings.lease(shared=True)
    assert (hudi.validity, hudi.renew_interval, hudi.drift, hudi.poll_seconds) == (300, 30, 1, 1)
    assert (settings.grant_seconds, settings.max_losses) == (20, 3)
    assert (settings.max_grant_seconds, settings.max_transaction_seconds) == (600, 0)
    assert settings.table(shared=False).hold == "while-active"
    assert settings.table(shared=True).hold == "per-commit"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"validity_seconds": 2.4},
            "validity_seconds=2.4 must be at least 1 + 3 × drift_seconds = 2.5, or a grant would outlive its lock",
        ),
        (
            {"hudi_validity_seconds": 3.9},
            "hudi_validity_seconds=3.9 must be at least 1 + 6 × drift_seconds = 4",
        ),
        (
            {"max_grant_seconds": 19.5},
            "max_grant_seconds=19.5 must be at least 20, two thirds of the shortest lease",
        ),
        (
            {"max_transaction_seconds": 5},
            "max_transaction_seconds=5 must be at least 20, two thirds of the shortest lease or 0 (no limit)",
        ),
        (
            {"kafka_security_protocol": "SASL_SSL"},
            "kafka_sasl_username and kafka_sasl_password or kafka_sasl_password_file missing; the mechanism PLAIN requires",
        ),
        (
            {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_username": "me"},
            "kafka_sasl_password or kafka_sasl_password_file missing; the mechanism PLAIN requires a user",
        ),
        ({"s3_endpoint": "localhost:9000"}, "'localhost:9000' is not a URL; use https://host[:port]"),
        ({"azure_endpoint": "ftp://here"}, "'ftp://here' is not a URL"),
        (
            {"kafka_security_protocol": "SSL", "kafka_ssl_cafile": "/nowhere.pem"},
            "kafka_ssl_cafile=/nowhere.pem can't be read: No such file or directory; it must be a PEM file",
        ),
        # The error of a single value names its variable.
        ({"validity_seconds": 0}, "validity_seconds ($LAKEWARDEN_VALIDITY_SECONDS): "),
        ({"validity_seconds": "soon"}, "validity_seconds ($LAKEWARDEN_VALIDITY_SECONDS): "),
        ({"topic_prefix": "a b"}, "topic_prefix ($LAKEWARDEN_TOPIC_PREFIX): "),
        ({"lock_hold": "forever"}, "lock_hold ($LAKEWARDEN_LOCK_HOLD): "),
        (
            {"tables": ("warehouse/*",)},
            "tables ($LAKEWARDEN_TABLES): 'warehouse/*' is not a table URI; use a form such as",
        ),
        (
            {"lock_root": "locks"},
            "lock_root ($LAKEWARDEN_LOCK_ROOT): 'locks' is not a location for locks; use file:///",
        ),
        (
            {"lock_root": "hdfs://b/x"},
            "lock_root ($LAKEWARDEN_LOCK_ROOT): 'hdfs://b/x' is not a location for locks",
        ),
        ({"lock_root": "gs://"}, "lock_root ($LAKEWARDEN_LOCK_ROOT): 'gs://' is not a location for locks"),
        (
            {"lock_places": ("s3://lake/*",)},
            "lock_places ($LAKEWARDEN_LOCK_PLACES): 's3://lake/*' is not of the form GLOB=>PLACE; use for example",
        ),
        (
            {"lock_places": ("s3://lake/*=>hoodie",)},
            "lock_places ($LAKEWARDEN_LOCK_PLACES): not a table URI: 'hoodie'",
        ),
        (
            {"lock_places": ("s3://lake/*=>ftp://here/lock.json",)},
            "lock_places ($LAKEWARDEN_LOCK_PLACES): 'ftp://here/lock.json' is in no store that can hold locks",
        ),
    ],
)
def test_an_invalid_value_or_combination_is_rejected_with_advice(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load(**values)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_error_names_every_invalid_setting() -> None:
    with pytest.raises(SettingsError, match=r"partitions .*; memory_mb "):
        Settings.load(partitions=0, memory_mb=0)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LAKEWARDEN_KAFKA_SASL_PASWORD", " (did you mean LAKEWARDEN_KAFKA_SASL_PASSWORD?)"),
        ("LAKEWARDEN_MAX_GRANT", " (did you mean LAKEWARDEN_MAX_GRANT_SECONDS?)"),
        ("LAKEWARDEN_CONFG", " (did you mean LAKEWARDEN_CONFIG?)"),
        ("lakewarden_tabels", " (did you mean LAKEWARDEN_TABLES?)"),
        ("LAKEWARDEN_ZZZZZZ", ""),
    ],
)
@pytest.mark.parametrize("settings", [Settings, KafkaSettings])
def test_an_unknown_variable_is_an_error_that_names_the_nearest_one(
    settings: type[KafkaSettings], name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt password file would otherwise mean a connection without a password."""
    monkeypatch.setenv(name, "a-secret-value")

    with pytest.raises(SettingsError) as caught:
        settings.load()

    assert str(caught.value) == (
        f"unknown environment variable: {name}{nearest}; docs/configuration.md lists all settings"
    )


@pytest.mark.parametrize(
    "name",
    [
        "LAKEWARDEN_MEMORY_MB",
        "lakewarden_partitions",
        "LAKEWARDEN_CACHE_DIR",
        "LAKEWARDEN_TEST_KAFKA",
        "LAKEWARDEN_SERVICE_HOST",
        "LAKEWARDEN_AGENT_SERVICE_PORT_METRICS",
        "LAKEWARDEN_PORT",
        "LAKEWARDEN_PORT_9092_TCP",
        "LAKEWARDEN_PORT_9092_TCP_ADDR",
    ],
)
def test_variables_that_are_known_or_set_by_kubernetes_are_no_errors(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "7")

    assert KafkaSettings.load().topic_prefix == "lakewarden"


def test_no_setting_has_a_name_that_kubernetes_uses() -> None:
    """Its misspelling would be ignored."""
    names = [f"LAKEWARDEN_{name.upper()}" for name in Settings.model_fields]

    assert [name for name in names if variables._is_ignored(name)] == []


def test_an_unknown_key_of_the_file_is_an_error_that_names_the_nearest_one(tmp_path: Path) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text('lock_rot = "/locks"\n')

    with pytest.raises(SettingsError, match=r"unknown setting: lock_rot \(did you mean lock_root\?\)"):
        Settings.load(config)


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        'lock_root = "/file"\ntopic_prefix = "file"\nbootstrap_servers = "file:1"\ntables = ["/data/*"]\n'
    )
    monkeypatch.setenv("LAKEWARDEN_LOCK_ROOT", "/environment")
    monkeypatch.setenv("LAKEWARDEN_TOPIC_PREFIX", "environment")

    settings = Settings.load(config, lock_root="/flag")

    assert settings.lock_root == "file:///flag"
    assert settings.topic_prefix == "environment"
    assert settings.bootstrap_servers == "file:1"
    assert settings.tables == ("file:///data/*",)


def test_a_configuration_file_applies_to_one_call_only(tmp_path: Path) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text('topic_prefix = "file"\n')

    assert Settings.load(config).group == "file-agents"
    assert Settings.load().group == "lakewarden-agents"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("validity = 3", "unknown setting: validity"),
        ("validity_seconds = ", "not TOML: "),
        (None, "cannot be read: No such file"),
    ],
)
def test_the_error_of_an_invalid_file_names_the_file(tmp_path: Path, text: str | None, message: str) -> None:
    config = tmp_path / "lakewarden.toml"
    if text is not None:
        config.write_text(text)

    with pytest.raises(SettingsError) as caught:
        Settings.load(config)

    assert str(caught.value).startswith(f"{config}: {message}")


def test_kafka_settings_can_be_loaded_from_the_agents_file(tmp_path: Path) -> None:
    config = tmp_path / "lakewarden.toml"
    config.write_text('validity_seconds = 40\nbootstrap_servers = "there:1"\n')

    assert KafkaSettings.load(config).bootstrap_servers == "there:1"


@pytest.mark.parametrize(
    "root, canonical",
    [
        ("/var/locks/", "file:///var/locks"),
        ("gs://bucket/locks", "gs://bucket/locks"),
        ("az://container/", "az://container"),
        ("s3a://bucket/locks", "s3://bucket/locks"),
        ("abfss://c@account.dfs.core.windows.net/locks", "abfs://c@account.dfs.core.windows.net/locks"),
    ],
)
def test_a_lock_root_may_be_in_any_cloud_with_hadoops_schemes_too(root: str, canonical: str) -> None:
    assert Settings.load(lock_root=root).lock_root == canonical


def test_tables_in_the_environment_are_separated_by_commas_and_become_canonical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = "/data/*, s3a://b/w/*,s3://b//t/, abfss://c@account.dfs.core.windows.net/*"
    monkeypatch.setenv("LAKEWARDEN_TABLES", given)

    assert Settings.load().tables == (
        "file:///data/*",
        "s3://b/w/*",
        "s3://b/t",
        "abfs://c@account.dfs.core.windows.net/*",
    )


def test_a_password_is_not_part_of_the_repr() -> None:
    settings = Settings.load(
        kafka_security_protocol="SASL_SSL", kafka_sasl_username="me", kafka_sasl_password="hush"
    )

    assert "hush" not in repr(settings)
    assert settings.kafka_client()["sasl_plain_password"] == "hush"


def test_the_places_of_locks_are_read_from_the_environment_and_made_canonical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "LAKEWARDEN_LOCK_PLACES", "s3a://lake/hudi/* => hudi, /data/t=>default,s3://lake/t=>s3a://l/t.json"
    )

    places = Settings.load().placement().places

    assert [(each.glob, each.location) for each in places] == [
        ("s3://lake/hudi/*", "hudi"),
        ("file:///data/t", "default"),
        ("s3://lake/t", "s3://l/t.json"),
    ]
