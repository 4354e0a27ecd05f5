"""The configuration reference, from the settings class."""

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lakewarden.agent.settings import Settings
from lakewarden.agent.variables import CONFIG_VARIABLE, ENV_PREFIX

_GROUPS = (
    (
        "Kafka",
        ("bootstrap_servers", "topic_prefix", "kafka_", "group_", "partitions", "replication", "session_"),
    ),
    ("Tables and locks", ("tables", "lock_", "validity_", "drift_", "hudi_", "strict_")),
    ("Object stores", ("s3_", "gcs_", "azure_")),
    ("Conflicts and limits", ("early_", "conflict_", "max_", "memory_")),
    (
        "Watching, answering and logging",
        ("watch", "catalogs", "formats", "agent_id", "http_", "web_", "log_"),
    ),
)
_FLAGS = {"bootstrap_servers", "tables", "lock_root", "s3_endpoint"}
_INTRODUCTION = f"""# Configuration

For operators: every setting. Here you find its name, default and limits. Generated from `agent/settings.py` by
`python -m tests.pages`; don't edit.

Every setting is an environment variable and a key of the TOML file that `--config` or `${CONFIG_VARIABLE}` names. Some are
also flags. Flags override the environment, and the environment overrides the file. Durations are in seconds.
An unknown key, or an unknown variable that begins with `{ENV_PREFIX}`, is an error that names the nearest setting.

The agent checks all settings before it starts. These durations follow from the length of a lease, and can't be set:

| duration | of 30 s | rule |
| --- | --- | --- |
| time between two renewals of a lock (of one that Hudi shares: 30 s) | 3 s | a tenth of its lease |
| timeout of a request to the object store; a lease that isn't renewed counts as lost this long before its end | 2 s | a 15th \
of the shorter lease |
| length of a grant lease, which heartbeats extend | 20 s | two thirds of the shorter lease |
| time between periodic checks | 1 s | a third of the time between renewals, at most 1 s |
| refusals of a store, until the transactions that wait for the lock are aborted | 120 s | four leases |
| largest difference between the clock of an agent and that of a Hudi writer | 1 s | twice `drift_seconds` |

So if the store is slow, increase `validity_seconds`.
"""


def render() -> str:
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
