"""The AsyncAPI 3 document of the protocol, `events/asyncapi.json`, for tools that generate clients and documentation.

Another test validates it with the AsyncAPI project's own parser.

It describes what a client must accept: unknown fields are allowed, and `type` is required.
"""

import inspect
import json
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lakewarden.events.base import PROTOCOL
from lakewarden.events.codec import MAX_EVENT_BYTES
from lakewarden.events.decision import DecisionRecord
from lakewarden.events.operator import AuditEventUnion, ConflictDetected, DeadLetter, LedgerRecord
from lakewarden.events.topics import DEFAULT_PREFIX, Topics
from lakewarden.events.writer import WriterEventUnion

_TABLE_KEY = "The event's `table`."
_CHANNELS: dict[str, tuple[str, str, tuple[type[BaseModel], ...]]] = {
    "writers": ("From writers to agents.", _TABLE_KEY, get_args(WriterEventUnion)),
    "decisions": (
        "From agents to writers, and to the agent that takes over a partition.",
        _TABLE_KEY,
        get_args(DecisionRecord),
    ),
    "conflicts": ("From agents to operators: the conflicts.", _TABLE_KEY, (ConflictDetected,)),
    "audit": (
        "From agents to operators and other agents: the steps in the life of each lock.",
        _TABLE_KEY,
        get_args(AuditEventUnion),
    ),
    "ledger": (
        "From agents to agents: the last committed batch of each writer, and the conflicts that it lost. Writers don't need it.",
        "The event's `table`, a newline, its `writer`. For `conflicts-lost` followed by a newline and `losses`.",
        get_args(LedgerRecord),
    ),
    "dead_letters": (
        "From agents to operators: the records that agents refused.",
        "The key of the refused record.",
        (DeadLetter,),
    ),
}
"""For each topic: what it carries, the record key, and the events."""

_OPERATIONS: dict[str, tuple[Literal["send", "receive"], str, str]] = {
    "publishWriterEvents": ("send", "writers", "A writer publishes the events of its transactions."),
    "consumeDecisions": (
        "receive",
        "decisions",
        "A writer consumes the decisions on its transactions, from the end that the topic had before its intent.",
    ),
    "consumeConflicts": ("receive", "conflicts", "An operator's tool consumes the conflicts."),
    "consumeAudit": ("receive", "audit", "An operator's tool consumes the steps in the life of the locks."),
    "consumeDeadLetters": ("receive", "dead_letters", "An operator's tool consumes the refused records."),
}


def document() -> dict[str, Any]:
    """The document, from the point of view of a client: a writer or an operator's tool."""
    models = [model for _, _, events in _CHANNELS.values() for model in events]
    _, schemas = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "lakewarden wire protocol",
            "version": f"{PROTOCOL}.0.0",
            "description": (
                "Writers of a lake table publish what they intend, touch and commit. Agents answer with decisions. The rules "
                "for writers are in docs/protocol.md. Every record is a UTF-8 JSON object of at most "
                f"{MAX_EVENT_BYTES} bytes. Readers ignore unknown fields."
            ),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {_key(topic): _channel(topic) for topic in _CHANNELS},
        "operations": {
            name: {"action": action, "channel": {"$ref": f"#/channels/{_key(topic)}"}, "summary": summary}
            for name, (action, topic, summary) in _OPERATIONS.items()
        },
        "components": {
            "messages": {
                _tag(model): _message(model, key) for _, key, events in _CHANNELS.values() for model in events
            },
            "schemas": {name: _open(schema) for name, schema in schemas["$defs"].items()},
        },
    }


def _key(topic: str) -> str:
    return topic.replace("_", "-")


def _tag(model: type[BaseModel]) -> str:
    return str(model.model_fields["type"].default)


def _channel(topic: str) -> dict[str, Any]:
    description, _, events = _CHANNELS[topic]
    name = getattr(Topics(), topic)
    settings = next(each for each in Topics().settings() if each.name == name)
    configuration: dict[str, Any] = {"cleanup.policy": [settings.config["cleanup.policy"]]}
    if "retention.ms" in settings.config:
        configuration["retention.ms"] = int(settings.config["retention.ms"])
    return {
        "address": name.replace(DEFAULT_PREFIX, "{prefix}", 1),
        "description": description,
        "parameters": {
            "prefix": {
                "description": "The prefix that the agents are configured with.",
                "default": DEFAULT_PREFIX,
            }
        },
        "messages": {_tag(model): {"$ref": f"#/components/messages/{_tag(model)}"} for model in events},
        "bindings": {
            "kafka": {
                "partitions": settings.partitions,
                "topicConfiguration": configuration,
                "bindingVersion": "0.5.0",
            }
        },
    }


def _message(model: type[BaseModel], key: str) -> dict[str, Any]:
    first, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\n\n")
    message: dict[str, Any] = {
        "name": _tag(model),
        "title": model.__name__,
        "summary": first,
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{model.__name__}"},
        "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": "0.5.0"}},
    }
    if rest:
        message["description"] = " ".join(rest.split())
    return message


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that may have further fields, and whose `type` is required."""
    found = {name: value for name, value in schema.items() if name != "additionalProperties"}
    if "type" in found["properties"]:
        found["required"] = ["type", *found["required"]]
    return found


def render() -> str:
    """The text of the file: indented, one newline at the end."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"
