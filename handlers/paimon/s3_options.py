"""How a table on S3 is reached: pypaimon's options in all their spellings, AWS's variables, and what Java Paimon calls both.

Three clients use one table: pypaimon, the client of the fenced publish (`snapshot_store.py`), and, for a compaction, the Hadoop
client in Java Paimon's S3 jar. An option takes precedence over a variable. Key, secret and token come from one place.

The jar takes its keys from its options only: it has no roles of instances, and no profiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_PREFIXES: Final = ("s3.", "s3a.", "fs.s3.", "fs.s3a.")


@dataclass(frozen=True, slots=True)
class PaimonS3Options:
    """None: not given. The endpoint is a URL."""

    endpoint: str | None
    region: str | None
    access_key: str | None = field(repr=False)
    secret_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    path_style: bool


def s3_options(options: Mapping[str, str], environment: Mapping[str, str]) -> PaimonS3Options:
    """Return what the options say, or else the environment."""
    endpoint = _option(options, "endpoint", "fs.s3.endpoint") or _first(
        environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    keys = (
        _option(options, "access-key", "access.key", "fs.s3.accessKeyId"),
        _option(options, "secret-key", "secret.key", "fs.s3.accessKeySecret"),
        _option(
            options,
            "session-token",
            "session.token",
            "security-token",
            "security.token",
            "fs.s3.securityToken",
        ),
    )
    if keys[0] is None:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        keys = (_first(environment, names[0]), _first(environment, names[1]), _first(environment, names[2]))
    path_style = _option(options, "path-style-access", "path.style.access") or "false"
    region = _option(options, "region", "fs.s3.region") or _first(
        environment, "AWS_REGION", "AWS_DEFAULT_REGION"
    )
    return PaimonS3Options(endpoint, region, *keys, path_style=path_style.lower() == "true")


def java_options(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options by which Java Paimon opens the same table. Raises `ValueError` without keys."""
    found = s3_options(options, environment)
    if not (found.access_key and found.secret_key):
        raise ValueError(
            "Java Paimon needs the keys of the S3 store: give s3.access-key and s3.secret-key in the catalog options, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; it reads no profile and no role of an instance"
        )
    spelled = {
        "s3.endpoint": found.endpoint,
        "s3.endpoint.region": found.region,
        "s3.access-key": found.access_key,
        "s3.secret-key": found.secret_key,
        "s3.session.token": found.session_token,
        "s3.path.style.access": str(found.path_style).lower(),
    }
    return {**options, **{name: value for name, value in spelled.items() if value}}


def _option(options: Mapping[str, str], *names: str) -> str | None:
    for name in names:
        for key in (name,) if name.startswith("fs.") else (f"{prefix}{name}" for prefix in _PREFIXES):
            if options.get(key):
                return str(options[key])
    return None


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next(filter(None, map(environment.get, names)), None)
