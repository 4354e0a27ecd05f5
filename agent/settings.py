"""The agent's configuration. Flags override environment variables (`LAKEWARDEN_…`), which override the TOML file.

All settings are validated before anything starts. docs/configuration.md is generated from these classes. Constants of the
classes, and durations that follow from the length of a lease, are read as the settings are, and can't be set.
"""

import dataclasses
import os
import re
import secrets
import socket
import tomllib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from lakewarden import events
from lakewarden.agent.errors import SettingsError
from lakewarden.agent.variables import CONFIG_VARIABLE, ENV_PREFIX, refuse_unknown_variables, unknown_keys
from lakewarden.events.access import IDLE_SECONDS, Access, check_files, client_arguments
from lakewarden.handlers.lease.machine import LeaseSettings
from lakewarden.handlers.lease.placement import DEFAULT, HUDI, ConfiguredLocation, Placement
from lakewarden.handlers.table.state import TableSettings

AGENT_CLIENT_ID = "lakewarden-agent"
COMMAND_CLIENT_ID = "lakewarden-cli"
RENEWALS_PER_VALIDITY = 10
"""The least that Hudi accepts, too: nine renewals in a row may fail before the lock is lost."""
MIN_VALIDITY_SECONDS = 1.0
"""Shortest lease, without what the clocks may differ by. Its renewals and requests last tens of milliseconds each."""
HUDI_POLL_SECONDS = 1.0
"""Between two reads of a lock that another owner holds, as Hudi's writers have it. No queue spans them and the agents, so a
contender that reads the lock less often rarely acquires it."""

_config_file: ContextVar[Path | None] = ContextVar("the settings file that is being read", default=None)

SCHEMES = ("file", "s3", "gs", "az", "abfs")
"""The stores that can hold locks."""
OFF = "off"
_PLACED = "=>"
"""Separates the glob and the place of an entry of `lock_places`."""
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
CATALOG_TYPES = ("rest", "sql", "glue", "hive")
_CATALOG_ENTRY = re.compile(r"([A-Za-z0-9_-]+):(?!/)([^/*?\[]+)\.([^./]+)")

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _named_file() -> Path | None:
    path = os.environ.get(CONFIG_VARIABLE)
    return Path(path) if path else None


def catalog_entry(entry: str) -> tuple[str, str, str] | None:
    """Catalog, namespace and table (or its pattern) of an entry of `watch`; None if the entry is a URI."""
    found = _CATALOG_ENTRY.fullmatch(entry)
    return None if found is None else (found[1], found[2], found[3])


def _agent_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class KafkaSettings(BaseSettings):
    """The settings of the Kafka clients, which are all that the reading commands need."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore", validate_default=True)

    bootstrap_servers: str = Field(
        default="localhost:9092", min_length=1, description="Kafka brokers as host:port, comma-separated"
    )
    topic_prefix: str = Field(
        default=events.DEFAULT_PREFIX,
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="prefix of every topic name",
    )
    kafka_request_timeout_seconds: ClassVar[float] = 40.0
    """Timeout of one request to Kafka, as aiokafka has it."""
    kafka_idle_seconds: ClassVar[float] = IDLE_SECONDS
    """An unused connection is closed after this, before a load balancer or NAT drops it."""

    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="security protocol of the brokers' listener"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        default="PLAIN", description="SASL mechanism, for the protocols SASL_…"
    )
    kafka_sasl_username: str | None = Field(default=None, description="user name, for PLAIN and SCRAM")
    kafka_sasl_password: SecretStr | None = Field(
        default=None, description="password, for PLAIN and SCRAM; never logged"
    )
    kafka_sasl_password_file: str | None = Field(
        default=None, description="file with the password, in place of `kafka_sasl_password`"
    )
    kafka_ssl_cafile: str | None = Field(
        default=None,
        description="PEM file with the certificate authority of the brokers; default: the system's authorities",
    )
    kafka_ssl_certfile: str | None = Field(
        default=None, description="PEM file with the client's certificate chain, and its key or not"
    )
    kafka_ssl_keyfile: str | None = Field(
        default=None, description="PEM file with the client's key; default: it is in `kafka_ssl_certfile`"
    )
    kafka_ssl_key_password_file: str | None = Field(
        default=None, description="file with the password of the client's key, if it is encrypted"
    )
    kafka_oauth_token_url: str | None = Field(
        default=None, description="token endpoint, for OAUTHBEARER with client credentials"
    )
    kafka_oauth_client_id: str | None = Field(
        default=None, description="the agent's client id at the token endpoint"
    )
    kafka_oauth_client_secret_file: str | None = Field(
        default=None, description="file with the client secret for the token endpoint"
    )
    kafka_oauth_scope: str | None = Field(
        default=None, description="scope to request at the token endpoint; default: none"
    )
    kafka_oauth_cafile: str | None = Field(
        default=None,
        description="PEM file with the authority of the token endpoint; default: the system's authorities",
    )
    kafka_oauth_token_provider: str | None = Field(
        default=None,
        description="`module:function?name=value` that returns access tokens, for OAUTHBEARER, in place of client credentials",
    )
    kafka_oauth_token_file: str | None = Field(
        default=None,
        description="file with an access token, read at each connect, in place of client credentials",
    )
    kafka_oauth_extensions: str | None = Field(
        default=None,
        description="SASL extensions to send with each token, as `logicalCluster=lkc-1,identityPoolId=pool-1`",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the TOML file that `LAKEWARDEN_CONFIG` or `--config` names."""
        del dotenv_settings, file_secret_settings
        path = _config_file.get() or _named_file()
        toml = (TomlConfigSettingsSource(settings_cls, path),) if path else ()
        return (init_settings, env_settings, *toml)

    @classmethod
    def load(cls, config: Path | None = None, **flags: object) -> Self:
        """Read all sources. A flag that is None or empty counts as not set.

        `SettingsError` names every invalid setting. An unknown variable of the environment or key of the file is one, too.
        """
        refuse_unknown_variables(os.environ, Settings.model_fields)
        path = config or _named_file()
        values: dict[str, Any] = {name: value for name, value in flags.items() if value not in (None, (), [])}
        assert values.keys() <= Settings.model_fields.keys(), f"no settings: {values.keys()}"
        if path is not None:
            _check_file(path)
        reading = _config_file.set(path)
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(
                "; ".join(_explain(each) for each in error.errors(include_url=False))
            ) from None
        finally:
            _config_file.reset(reading)

    @model_validator(mode="after")
    def _secured(self) -> Self:
        access = self.access()
        access.check(_setting_of)
        check_files(access, _setting_of)
        return self

    @cached_property
    def kafka_client_id(self) -> str:
        return COMMAND_CLIENT_ID

    @property
    def group(self) -> str:
        """The consumer group of the agents that share the tables. The agents of other topics are another group."""
        return f"{self.topic_prefix}-agents"

    @property
    def topics(self) -> events.Topics:
        return events.Topics(self.topic_prefix)

    def access(self) -> Access:
        values = {each.name: getattr(self, _setting_of(each.name)) for each in dataclasses.fields(Access)}
        password = self.kafka_sasl_password
        return Access(
            **{**values, "sasl_password": None if password is None else password.get_secret_value()}
        )

    def kafka_client(self) -> dict[str, Any]:
        """Keyword arguments for aiokafka's clients. Pass each client to `agent.kafka.rotating`, too."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.kafka_client_id,
            "request_timeout_ms": round(self.kafka_request_timeout_seconds * 1000),
            **client_arguments(self.access()),
            "connections_max_idle_ms": round(self.kafka_idle_seconds * 1000),
        }


def _setting_of(option: str) -> str:
    return f"kafka_{option}"


class Settings(KafkaSettings):
    """All settings of the agent.

    What follows from others is cached, so copy settings before you read it.
    """

    ready_seconds: ClassVar[float] = 10.0
    """An agent is not ready if it is further behind the log, or if Kafka has not acknowledged a record for so long."""
    shutdown_seconds: ClassVar[float] = 10.0
    """Time limit of an orderly shutdown. Recording a lost ledger again may take 60 s more."""
    max_losses: ClassVar[int] = 3
    """Conflicts lost in a row, after which a writer is protected and wins the next one."""
    max_tables: ClassVar[int] = 10_000
    """Tables of a Kafka partition with an event in the last ten minutes: about 10 KB each without open transactions."""
    watch_seconds: ClassVar[float] = 1.0
    """Between two looks of a watcher at a table with pending instants, or with a commit in the last minute."""
    watch_idle_seconds: ClassVar[float] = 5.0
    """Between two looks of a watcher at another table: a LIST each, which stores charge for."""
    watch_grace_seconds: ClassVar[float] = 2.0
    """A watcher reports an instant this long after it has seen it first: the gate's writers have announced theirs by then."""

    tables: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="tables that the agent serves: URIs or globs, comma-separated; it touches no other location",
    )
    lock_root: str | None = Field(
        default=None,
        description="folder of the lock objects (file:///folder, or s3, gs, az, abfs://bucket/…); default: each table's bucket",
    )
    lock_places: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="where tables' locks are: GLOB=>PLACE,…; the first match counts; PLACE: hudi (Hudi tables' default), default "
        "(below lock_root) or an object's URI",
    )
    s3_endpoint: str | None = Field(
        default=None, description="S3 endpoint; default: that of the AWS configuration, or AWS"
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="S3 addressing style; auto: path if an endpoint is set"
    )
    s3_encryption: str | None = Field(
        default=None,
        pattern=r"^(AES256|aws:kms(:dsse)?(=.+)?)$",
        description="header x-amz-server-side-encryption of lock objects, where a bucket policy demands it: `AES256`, `aws:kms`, "
        "`aws:kms:dsse`; `aws:kms=KEY` names your key; default: none, the bucket's encryption",
    )
    s3_requester_pays: bool = Field(
        default=False, description="whether this agent's account pays for its requests to S3"
    )
    s3_bucket_owner: str | None = Field(
        default=None,
        pattern=r"^[0-9]{12}$",
        description="account id that owns the buckets of locks; S3 refuses requests to a bucket of another one",
    )
    gcs_endpoint: str | None = Field(
        default=None, description="Google Cloud Storage endpoint; default: Google's; http:// is unencrypted"
    )
    azure_endpoint: str | None = Field(
        default=None,
        description="Azure Blob endpoint; default: that of the storage account; http:// is unencrypted",
    )

    agent_id: str = Field(
        default_factory=_agent_id, min_length=1, max_length=200, description="name of this agent in events"
    )
    group_instance_id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="name of this agent in the consumer group that it keeps when it restarts (static membership); its partitions "
        "wait for session_timeout_seconds; unique; default: none",
    )
    partitions: int = Field(
        default=events.DEFAULT_PARTITIONS,
        ge=1,
        le=10_000,
        description="number of partitions of the topics that the agent creates",
    )
    replication: int = Field(
        default=-1,
        ge=-1,
        description="replicas of the topics that the agent creates; -1: the brokers' default",
    )
    session_timeout_seconds: Seconds = Field(
        default=6.0,
        description="after this long without a heartbeat, the group assigns an agent's partitions to other agents",
    )

    validity_seconds: Seconds = Field(default=30.0, description="length of a lock lease")
    drift_seconds: Seconds = Field(
        default=0.5, description="largest difference between the clocks of two contenders"
    )
    hudi_validity_seconds: Seconds = Field(
        default=300.0, description="as validity_seconds, for locks shared with Hudi"
    )
    strict_takeover: bool = Field(
        default=False,
        description="don't rely on clocks: acquire an expired lock only after it stayed unchanged for a whole lease",
    )
    lock_hold: Literal["while-active", "per-commit"] = Field(
        default="while-active",
        description="hold a table's lock while it has open transactions, or only for each commit, as always for locks shared "
        "with Hudi",
    )

    early_detection: bool = Field(
        default=True,
        description="detect conflicts when a transaction touches a file group; false: check a transaction once, before its grant",
    )
    conflict_policy: Literal["first-intent", "first-committer"] = Field(
        default="first-intent",
        description="which transaction wins a conflict: the one with the earlier intent, or the one that is granted first",
    )
    max_grant_seconds: Seconds = Field(
        default=600.0,
        description="a grant as old as this is no longer extended; without a report, its outcome is unknown one grant lease "
        "later",
    )
    max_transaction_seconds: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="a transaction that has been open for longer, and is not granted, is aborted; 0: no limit",
    )
    max_priority: int = Field(
        default=0,
        description="highest priority that an intent may have; the agent aborts the transactions of higher ones",
    )
    memory_mb: int = Field(
        default=1_000,
        ge=1,
        description="memory for what the transactions of all tables touch, in MB of 1,000,000 bytes (estimated); above it the "
        "agent aborts the largest open transaction",
    )

    watch: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="tables whose writers without the gate are reported: URIs, globs with a wildcard in the last segment, or "
        "catalog:namespace.table, comma-separated; default: none",
    )
    catalogs: dict[str, dict[str, SecretStr]] = Field(
        default={},
        description="catalogs of Iceberg tables that `watch` names: by name, each with its properties "
        "([watch](watch.md#tables-of-a-catalog)); in the environment as JSON",
    )
    formats: dict[str, Literal["delta", "hudi", "iceberg", "paimon"]] = Field(
        default={},
        description="format by URI of tables whose folder has several ([assess](assess.md#what-is-read)); "
        "in the environment as JSON",
    )

    http_listen: str = Field(
        default="127.0.0.1:8437",
        description="where the agent answers `/livez`, `/readyz`, `/metrics`: host:port; :port: on all addresses; off: nowhere",
    )
    web_listen: str = Field(
        default="127.0.0.1:8438",
        description="where `lakewarden web` listens: host:port, with the path below which a proxy serves it, if any, as in "
        ":8438/lakewarden; :port: on all addresses",
    )
    web_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="names under which browsers reach `lakewarden web`, as in the Host header, comma-separated, in "
        "addition to localhost and the loopback addresses",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )

    @field_validator("tables", "lock_places", "watch", "web_allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("tables", "watch")
    @classmethod
    def _canonical_globs(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        has_names = info.field_name == "watch"
        return tuple(
            each if has_names and catalog_entry(each) else events.canonical_glob(each) for each in value
        )

    @field_validator("catalogs", mode="before")
    @classmethod
    def _flat(cls, value: object) -> object:
        """Properties as text. TOML makes tables of names with dots, and has numbers and booleans."""
        if not isinstance(value, dict):
            return value
        return {
            name: dict(_texts(given, "")) if isinstance(given, dict) else given
            for name, given in value.items()
        }

    @model_validator(mode="after")
    def _catalogs_known(self) -> Self:
        for name, given in self.catalogs.items():
            kind = given["type"].get_secret_value() if "type" in given else "missing"
            if kind not in CATALOG_TYPES:
                raise ValueError(f"catalogs: type of {name!r} is {kind!r}; use {', '.join(CATALOG_TYPES)}")
            if "uri" not in given and kind != "glue":
                raise ValueError(f"catalogs: {name!r} has no uri")
        for entry in self.watch:
            found = catalog_entry(entry)
            if found is not None and found[0] not in self.catalogs:
                known = ", ".join(sorted(self.catalogs)) or "none"
                raise ValueError(
                    f"watch: {entry!r} is of a catalog that catalogs doesn't have; it has: {known}"
                )
        return self

    @field_validator("watch")
    @classmethod
    def _watchable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            if catalog_entry(glob):
                continue
            folder, _, pattern = glob.rpartition("/")
            if events.is_glob(folder) or not pattern or folder.endswith(":/"):
                raise ValueError(
                    f"a watcher can't look for tables at {glob!r}: wildcards stand in the last segment only, as in s3://lake/hudi/*"
                )
        return value

    @field_validator("lock_places")
    @classmethod
    def _canonical_places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_canonical_place(each) for each in value)

    @field_validator("lock_root")
    @classmethod
    def _canonical_root(cls, value: str | None) -> str | None:
        if value is None:
            return None
        value = "file://" + value if value.startswith("/") else value
        scheme, separator, rest = value.partition("://")
        scheme = events.canonical_scheme(scheme)
        if not separator or scheme not in SCHEMES or not rest.strip("/"):
            raise ValueError(
                f"{value!r} is not a location for locks; use file:///folder or s3://bucket[/prefix]; gs, az and abfs as s3"
            )
        return f"{scheme}://{rest.rstrip('/')}"

    @field_validator("s3_endpoint", "gcs_endpoint", "azure_endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(
                f"{value!r} is not a URL; use https://host[:port], or http://host[:port] for an unencrypted connection"
            )
        return value

    @field_validator("http_listen", "web_listen")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if value == OFF and info.field_name == "http_listen":
            return value
        is_page = info.field_name == "web_listen"
        address, slash, path = value.partition("/") if is_page else (value, "", "")
        host, separator, port = address.rpartition(":")
        if not (separator and port.isdecimal() and int(port) < 65536 and _PATH.fullmatch(slash + path)):
            more = ", and a path such as /lakewarden" if is_page else f", or {OFF} for no endpoint"
            raise ValueError(f"{value!r} is not an address; use host:port, or :port for all addresses{more}")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{value!r} is not an address; write an IPv6 address in brackets: [::1]:8437")
        return value

    @model_validator(mode="after")
    def _ratios(self) -> Self:
        for name, times in (("validity_seconds", 3), ("hudi_validity_seconds", 6)):
            validity, least = getattr(self, name), MIN_VALIDITY_SECONDS + times * self.drift_seconds
            if validity < least:
                raise ValueError(
                    f"{name}={validity:g} must be at least {MIN_VALIDITY_SECONDS:g} + {times} × drift_seconds = {least:g}, "
                    "or a grant would outlive its lock"
                )
        grant = self._shortest_lease * 2 / 3
        for name, none in (("max_grant_seconds", ""), ("max_transaction_seconds", " or 0 (no limit)")):
            if 0 < getattr(self, name) < grant:
                raise ValueError(
                    f"{name}={getattr(self, name):g} must be at least {grant:g}, two thirds of the shortest lease{none}"
                )
        return self

    @property
    def _shortest_lease(self) -> float:
        return min(self.validity_seconds, self.hudi_validity_seconds)

    @cached_property
    def renew_seconds(self) -> float:
        return self.validity_seconds / RENEWALS_PER_VALIDITY

    @cached_property
    def hudi_renew_seconds(self) -> float:
        """As `renew_seconds`, for locks shared with Hudi."""
        return self.hudi_validity_seconds / RENEWALS_PER_VALIDITY

    @cached_property
    def hudi_drift_seconds(self) -> float:
        """As `drift_seconds`, for locks shared with Hudi. Its writers are Spark drivers, on machines of their own."""
        return 2 * self.drift_seconds

    @cached_property
    def request_timeout_seconds(self) -> float:
        """Timeout of one request to an object store: less than the time between two renewals, so that they don't overlap."""
        return self._shortest_lease / RENEWALS_PER_VALIDITY * 2 / 3

    @cached_property
    def margin_seconds(self) -> float:
        """An unconfirmed lease counts as lost this long before its end: a request may be under way."""
        return self.request_timeout_seconds

    @cached_property
    def refusal_seconds(self) -> float:
        """After a store has refused a table's lock for this long, the table's open transactions are aborted."""
        return 4 * self.validity_seconds

    @cached_property
    def grant_seconds(self) -> float:
        """Length of a grant lease, which must end before its lock's. Heartbeats extend it."""
        return self._shortest_lease * 2 / 3

    @cached_property
    def check_seconds(self) -> float:
        """Time between periodic checks: a third of that between renewals, since what a lease allows is checked by them."""
        return min(1.0, self.validity_seconds / RENEWALS_PER_VALIDITY / 3)

    def lease(self, *, shared: bool) -> LeaseSettings:
        """The lease settings of a lock: those for Hudi (`hudi_…`) if the lock is shared with Hudi's writers."""
        lease = LeaseSettings(
            validity=self.hudi_validity_seconds if shared else self.validity_seconds,
            renew_interval=self.hudi_renew_seconds if shared else self.renew_seconds,
            drift=self.hudi_drift_seconds if shared else self.drift_seconds,
            margin=self.margin_seconds,
            refusal_seconds=self.refusal_seconds,
            strict=self.strict_takeover,
        )
        return dataclasses.replace(lease, poll_seconds=HUDI_POLL_SECONDS) if shared else lease

    def table(self, *, shared: bool) -> TableSettings:
        return TableSettings(
            early_detection=self.early_detection,
            policy=self.conflict_policy,
            hold="per-commit" if shared else self.lock_hold,
            grant_lease=self.grant_seconds,
            max_grant=self.max_grant_seconds,
            max_transaction=self.max_transaction_seconds,
            max_losses=self.max_losses,
            max_priority=self.max_priority,
        )

    @property
    def http_address(self) -> tuple[str | None, int] | None:
        """Host and port of `http_listen`, or None if it is off. The host None means all addresses."""
        return None if self.http_listen == OFF else _host_and_port(self.http_listen)

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * 1_000_000

    @property
    def web_address(self) -> tuple[str | None, int]:
        """Host and port of `web_listen`. The host None means all addresses."""
        return _host_and_port(self.web_listen.partition("/")[0])

    @property
    def web_base_path(self) -> str:
        """The path of `web_listen`, such as `/lakewarden`, or an empty text."""
        _, slash, path = self.web_listen.partition("/")
        return slash + path

    def placement(self) -> Placement:
        """The tables that events may name, and the places of their locks."""
        places = (each.partition(_PLACED) for each in self.lock_places)
        return Placement(
            self.tables,
            self.lock_root,
            tuple(ConfiguredLocation(glob, location) for glob, _, location in places),
        )


def _texts(given: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{before}{key}.")
        else:
            is_plain = isinstance(value, bool | int | float)
            yield before + key, str(value).lower() if is_plain else value


def _host_and_port(address: str) -> tuple[str | None, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]") or None, int(port)


def _canonical_place(entry: str) -> str:
    """An entry of `lock_places` with canonical URIs."""
    glob, separator, location = (part.strip() for part in entry.partition(_PLACED))
    if not separator or not location:
        raise ValueError(
            f"{entry!r} is not of the form GLOB=>PLACE; use for example 's3://lake/hudi/*=>hudi'"
        )
    if location not in (HUDI, DEFAULT):
        location = events.canonical_location(location)
        if location.partition("://")[0] not in SCHEMES:
            raise ValueError(f"{location!r} is in no store that can hold locks; use {', '.join(SCHEMES)}")
    return f"{events.canonical_glob(glob)}{_PLACED}{location}"


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    if unknown := unknown_keys(values, Settings.model_fields):
        raise SettingsError(f"{path}: unknown setting: {unknown}; docs/configuration.md lists all settings")


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name} (${ENV_PREFIX}{name.split('.')[0].upper()}): {message}" if name else message
