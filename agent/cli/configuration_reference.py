"""Generates the configuration reference from the settings class.

    python -m lakewarden.agent.cli.configuration_reference > docs/configuration.md

A test compares the file with the output, so that a setting can't change without its line.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import CONFIG_VARIABLE, ENV_PREFIX

_GROUPS = (
    (
        "Kafka",
        ("bootstrap_servers", "topic_prefix", "kafka_", "group", "partitions", "replication", "session_"),
    ),
    ("Tables and locks", ("allow", "lock_root", "lock_places", "s3_", "gcs_", "azure_", "hold")),
    ("Lock lease", ("validity_", "renew_", "drift_", "margin_", "strict_", "request_", "refusal_", "hudi_")),
    (
        "Conflicts, grants and writers",
        ("early_", "policy", "grant_", "heartbeat_", "max_", "memory_", "check_"),
    ),
    ("Watching tables", ("watch", "catalogs")),
    ("The page (`lakewarden web`)", ("web_",)),
    ("The process", ("agent_id", "instance", "http_", "metrics_", "ready_", "shutdown_", "log_")),
)
_FLAGS = {"bootstrap_servers", "allow", "lock_root", "s3_endpoint"}
_INTRODUCTION = f"""# Configuration

Generated from `agent/settings.py` by `python -m lakewarden.agent.cli.configuration_reference`; don't edit.

Every setting is an environment variable and a key of the TOML file that `--config` or `${CONFIG_VARIABLE}` names. Some are
also flags. Flags override the environment, and the environment overrides the file. Durations are in seconds.
An unknown key, or an unknown variable that begins with `{ENV_PREFIX}`, is an error that names the nearest setting.

The agent checks all settings before it starts, including these ratios: `validity ≥ 10 × renew`,
`request_timeout < renew`, `grant < validity − drift`.
"""


def render() -> str:
    """The whole page."""
    sections = [_INTRODUCTION]
    left = dict(Settings.model_fields)
    for title, prefixes in _GROUPS:
        names = [name for name in left if name.startswith(prefixes)]
        rows = [_row(name, left.pop(name)) for name in names]
        sections.append(
            f"## {title}\n\n| setting | variable | default | description |\n| --- | --- | --- | --- |\n"
            + "\n".join(rows)
            + "\n"
        )
    if left:
        raise AssertionError(f"add these settings to a group of the reference: {sorted(left)}")
    return "\n".join(sections)


def _row(name: str, field: FieldInfo) -> str:
    flag = f"<br>`--{name.replace('_', '-')}`" if name in _FLAGS else ""
    choices = _choices(field.annotation)
    what = field.description or ""
    if choices:
        what += " (" + ", ".join(f"`{choice}`" for choice in choices) + ")"
    return f"| `{name}`{flag} | `{ENV_PREFIX}{name.upper()}` | {_default(field)} | {what} |"


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(choice for part in get_args(annotation) for choice in _choices(part))
    return ()


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "host name, process id and random characters"
    if field.default in (None, (), {}):
        return "–"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


if __name__ == "__main__":
    sys.stdout.write(render())
