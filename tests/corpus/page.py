"""Write the generated parts of docs/protocol.md and docs/events.md: `python -m tests.corpus.page`. A test compares them.

A generated part stands between `<!-- generated: NAME ARGUMENT -->` and `<!-- end -->`:

    topics              the topics and their settings
    fields MODEL        the table of a model's own fields, without those of its base
    event TYPE          what the event is, its own fields, and its recorded example
    example NAME        one recorded event, without the fields that all events of its topic have
    reasons             the reasons of an abort, each with its recorded `retriable`
    limits              every limit, from the constants of the code
    partitions          the Kafka partition of some tables, to test a partitioner with
    client              the defaults of the Python client
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lakewarden.agent import wire_events
from lakewarden.agent.serving.partition import own_records
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DEFAULT_PARTITIONS,
    MAX_EVENT_BYTES,
    MAX_MARKERS_PER_EVENT,
    AbortReason,
    Topics,
    base,
    decision,
    markers,
    operator,
    tables,
    writer,
)
from lakewarden.events.access.batches import MAX_BATCH
from lakewarden.events.topics import MAX_BATCH_BYTES
from lakewarden.handlers.table import conflicts, state
from lakewarden.spark_jobs import CommitGate
from tests.corpus import recorded

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "protocol.md", DOCS / "events.md")
_PART = re.compile(
    r"(?P<begin><!-- generated: (?P<what>[^>]*?) -->\n)(?P<text>.*?)(?P<end><!-- end -->\n)", re.DOTALL
)
_MODELS: dict[str, type[BaseModel]] = {
    model.__name__: model
    for module in (base, markers, writer, decision, operator)
    for model in vars(module).values()
    if inspect.isclass(model) and issubclass(model, base.Wire)
}
_BY_TYPE = {
    model.model_fields["type"].default: model for model in _MODELS.values() if "type" in model.model_fields
}
_SCHEMAS: dict[str, Any] = models_json_schema([(model, "serialization") for model in _MODELS.values()])[1][
    "$defs"
]
_DAY_MS = 86_400_000
_WIDTH = 100
_INNER = re.compile(r"^(?P<indent> +)\{(?P<fields>[^{}\[\]]*)\}", re.MULTILINE)


def render(page: str) -> str:
    """The page with every generated part replaced."""
    return _PART.sub(lambda part: part["begin"] + _generated(part["what"]) + part["end"], page)


def parts(page: str) -> list[str]:
    """What is generated in the page."""
    return [part["what"] for part in _PART.finditer(page)]


def _generated(what: str) -> str:
    name, _, argument = what.partition(" ")
    makers: dict[str, Callable[[], str]] = {
        "topics": _topics,
        "fields": lambda: _fields(_MODELS[argument]),
        "event": lambda: _event(argument),
        "example": lambda: _example(argument),
        "reasons": _reasons,
        "limits": _limits,
        "partitions": _partitions,
        "client": _client,
    }
    return f"\n{makers[name]().strip()}\n\n"


def _topics() -> str:
    carries = {
        "writers": ("the event's `table`", "writers → agents"),
        "decisions": ("the event's `table`", "agents → writers, agents"),
        "conflicts": ("the event's `table`", "agents → operators"),
        "audit": ("the event's `table`", "agents → operators, agents"),
        "ledger": (
            "`table`, newline, `writer`; of `conflicts-lost` also newline, `losses`",
            "agents → agents",
        ),
        "dead-letters": ("that of the refused record", "agents → operators"),
    }
    rows = []
    for each in Topics().settings():
        key, way = carries[each.name.partition(".")[2]]
        days = int(each.config.get("retention.ms", 0)) // _DAY_MS
        kept = f"deleted after {days} days" if days else "compacted"
        rows.append(f"| `{each.name}` | {way} | {key} | {each.partitions} | {kept} |")
    return _table("topic | from → to | record key | Kafka partitions | records are", rows)


def _event(tag: str) -> str:
    model = _BY_TYPE[tag]
    paragraphs = [
        textwrap.fill(" ".join(each.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)
        for each in inspect.cleandoc(model.__doc__ or "").split("\n\n")
    ]
    example = "abort.conflict" if tag == "abort" else tag
    return "\n\n".join([*paragraphs, _fields(model), _example(example)])


def _fields(model: type[BaseModel]) -> str:
    schema = _SCHEMAS[model.__name__]
    rows = []
    for name in _own_fields(model):
        field = schema["properties"][name]
        if name == "type" or field.get("description") == "Empty.":
            continue
        default = (
            "required" if name in schema.get("required", ()) else f"`{json.dumps(field.get('default'))}`"
        )
        rows.append(
            f"| `{name}` | {_type(field)} | {default} | {' '.join(field.get('description', '').split())} |"
        )
    return _table("field | type | default | meaning", rows) if rows else "No fields of its own."


def _own_fields(model: type[BaseModel]) -> list[str]:
    """The fields of an event that its bases don't have, or not in this form."""
    inherited = {name for parent in model.__mro__[1:] for name in getattr(parent, "model_fields", {})}
    declared = vars(model).get("__annotations__", {})
    return [
        name for name in _SCHEMAS[model.__name__]["properties"] if name not in inherited or name in declared
    ]


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if "$ref" in field:
        return f"[{field['$ref'].rpartition('/')[2]}](protocol.md#objects)"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field["type"] == "array":
        most = f", at most {field['maxItems']:,}" if "maxItems" in field else ""
        return f"list of {_type(field['items'])}{most}"
    return f"{field['type']}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    if "maxLength" in field:
        return f", {field.get('minLength', 0)} to {field['maxLength']:,} characters"
    if "minLength" in field:
        return ", not empty"
    largest = 2 ** (base.INTEGER_BITS - 1)
    limits = [
        f"{sign} {field[name]}"
        for name, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("maximum", "≤"))
        if name in field and field[name] not in (-largest, largest - 1)
    ]
    if field.get("maximum") == largest - 1:
        limits.append(f"{base.INTEGER_BITS} bits")
    return "".join(f", {each}" for each in limits)


def _example(name: str) -> str:
    [found] = [each for each in recorded() if each.name == name]
    event = json.loads(found.value)
    own = {"type", *_own_fields(_BY_TYPE[event["type"]])}
    shown = {name: value for name, value in event.items() if name in own}
    pretty = json.dumps(shown, indent=2, ensure_ascii=False)
    return f"```json\n{_INNER.sub(_on_one_line, pretty)}\n```"


def _on_one_line(inner: re.Match[str]) -> str:
    """An object inside an event on one line, if it fits."""
    fields = " ".join(each.strip() for each in inner["fields"].strip().splitlines())
    line = f"{inner['indent']}{{{fields}}}"
    return line if len(line) < _WIDTH else inner[0]


def _reasons() -> str:
    meaning = {
        "conflict": (
            "another transaction touched the same, and won",
            "begin a new transaction, queued, with what this one touched as scope",
        ),
        "writer-lost": ("no event of the writer arrived for too long", "begin a new transaction"),
        "lease-lost": (
            "the agent lost the table's lock while the grant ran, or an operator withdrew the grant",
            "if the publish has not started, begin a new transaction; else see [lapse](#a-lapse)",
        ),
        "outcome-unknown": (
            "this transaction's grant lease expired, or that of another one that touched the same (then `conflicts` names it)",
            "own lapse: read the outcome from the table; another's: begin a new transaction",
        ),
        "superseded": (
            "the same writer opened a newer transaction, or the batch has been committed since",
            "stop this process's attempt: another one replaced it; if retriable, begin again: the answer is `already-committed`",
        ),
        "not-allowed": (
            "the agent refused an event, the table or its lock, or a limit is reached",
            "read `detail`; change the configuration or the client",
        ),
        "unknown-transaction": ("the agent knows no intent of this transaction", "begin a new transaction"),
        "lock-refused": (
            "the store has refused the agent the table's lock for minutes",
            "begin a new transaction; an operator reads `detail`",
        ),
        "timed-out": (
            "the transaction was open for longer than the agent's `max_transaction_seconds`",
            "read `detail`; begin a new transaction if retriable",
        ),
        "operator": (
            "an operator ended the transaction",
            "read `detail`; begin a new transaction, unless the job should stop",
        ),
    }
    assert set(meaning) == set(get_args(AbortReason)), "describe every reason"
    return _table(
        "`reason` | what happened | what the writer does",
        [f"| `{reason}` | {happened} | {does} |" for reason, (happened, does) in meaning.items()],
    )


def _limits() -> str:
    settings = Settings()
    table = settings.table(shared=False)
    intent = _SCHEMAS["CommitIntent"]["properties"]
    lock_length, longest_heartbeat = (
        intent["lock"]["anyOf"][0]["maxLength"],
        intent["heartbeat_seconds"]["maximum"],
    )
    rows = [
        ("a record's value", f"{MAX_EVENT_BYTES:,} bytes", "refused before it is parsed"),
        (
            "a record with its key and its batch",
            f"{MAX_BATCH_BYTES:,} bytes (`max.message.bytes` of the topic)",
            "refused by the broker: split the markers before 900,000 bytes; of a scope, name partitions with `*`",
        ),
        ("a compressed batch", f"{MAX_BATCH:,} bytes uncompressed", "refused as one record"),
        ("markers in one event", f"{MAX_MARKERS_PER_EVENT:,}", "refused; split the list"),
        (
            "`event_id`, `transaction`, `writer`, `operator`",
            f"1 to {base.MAX_NAME} bytes of UTF-8, no line break",
            "refused",
        ),
        ("`grant` of a completion", f"1 to {base.MAX_GRANT} bytes of UTF-8, no line break", "refused"),
        ("`version`", f"{base.MAX_VERSION:,} characters", "refused"),
        (
            "`admission_reason`; `reason` of an abandonment or a request",
            f"{base.MAX_REASON:,} characters",
            "refused",
        ),
        ("`host`, `application_id`", f"{base.MAX_ORIGIN} characters", "refused"),
        ("`application_ui`", f"{base.MAX_VERSION:,} characters", "refused"),
        ("`batch_id`, `priority`, `seq`", f"a signed integer of {base.INTEGER_BITS} bits", "refused"),
        (
            "`priority` of a transaction",
            f"{settings.max_priority} (`max_priority`)",
            "aborted, `not-allowed`",
        ),
        ("`table`, `partition`, `file_group`", f"{tables.MAX_PATH:,} characters", "refused"),
        ("`lock`", f"{lock_length:,} characters", "refused"),
        ("`heartbeat_seconds`", f"more than 0, at most {longest_heartbeat:g}", "refused"),
        ("markers of one transaction", f"{table.max_markers:,}", "aborted, `not-allowed`"),
        ("open transactions of a table", f"{table.max_open:,}", "aborted, `not-allowed`, retriable"),
        (
            "what the transactions of one agent touch",
            f"{settings.memory_mb:,} MB, estimated (`memory_mb`)",
            "the largest open one is aborted, `not-allowed`, retriable",
        ),
        (
            "tables in a Kafka partition",
            f"{settings.max_tables:,}, with an event in the last ten minutes",
            "refused",
        ),
        (
            "silence of a writer",
            f"{table.heartbeat_misses} × its `heartbeat_seconds`",
            "aborted, `writer-lost`",
        ),
        (
            "first lease of a grant",
            f"{settings.grant_seconds:g} s: two thirds of a lock lease",
            "lapse; heartbeats extend it",
        ),
        (
            "age of a grant that is extended",
            f"{settings.max_grant_seconds:g} s (`max_grant_seconds`)",
            "not extended; lapse",
        ),
        (
            "age of a transaction that is not granted",
            "no limit (`max_transaction_seconds`)",
            "aborted, `timed-out`",
        ),
        (
            "entries in `conflicts`",
            f"{conflicts.MAX_EVIDENCE}, and {wire_events.MAX_EVIDENCE_CHARACTERS:,} characters of names",
            "further overlaps are left out",
        ),
        (
            "partitions in `reserved`, `lost_on`",
            f"{state.MAX_LOST_ON}, and {state.MAX_LOST_ON_CHARACTERS:,} characters of names",
            "further partitions are left out",
        ),
        (
            "`detail` of a refused record, `reason` of a dead letter",
            f"{own_records.MAX_REASON:,} characters",
            "cut",
        ),
        ("`value` of a dead letter", f"the first {own_records.DEAD_LETTER_BYTES:,} bytes", "cut"),
        (
            "ended transactions that the agent remembers per table",
            f"{state.MAX_CLOSED:,}",
            "a late event gets `unknown-transaction`",
        ),
    ]
    return _table("what | limit | beyond it", [f"| {' | '.join(row)} |" for row in rows])


def _partitions() -> str:
    found = {
        each.key: each.partition
        for each in recorded()
        if each.topic == Topics().decisions and not each.key.startswith("lakewarden:")
    }
    return _table(
        f"record key | Kafka partition of {DEFAULT_PARTITIONS}",
        [f"| `{key}` | {partition} |" for key, partition in sorted(found.items())],
    )


def _client() -> str:
    meanings = {
        "heartbeat_seconds": "interval of the heartbeats",
        "admission_timeout_seconds": (
            "longest wait for an answer to the intent; longer than a grant lease, which a former process may still hold"
        ),
        "queue_timeout_seconds": "the same, if the admission may have to wait in the admission queue",
        "grant_timeout_seconds": "longest wait for the grant",
        "margin_seconds": "by how much the writer's deadline is before the end of the lease",
    }
    parameters = inspect.signature(CommitGate.__init__).parameters
    rows = [f"| `{name}` | {parameters[name].default:g} | {meaning} |" for name, meaning in meanings.items()]
    return _table("setting | seconds | meaning", rows)


def _table(head: str, rows: list[str]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join([f"| {head} |", f"| {rule} |", *rows])


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(render(each.read_text(encoding="utf-8")), encoding="utf-8")
