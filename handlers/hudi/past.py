"""What the files of the timeline say of a table's history: who committed what, and what was rolled back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakewarden.handlers.assessment import PastCommit
from lakewarden.handlers.commit_label import HUDI_LABEL
from lakewarden.handlers.hudi.errors import UnreadableHudi
from lakewarden.handlers.hudi.metadata import InstantMetadata, decode
from lakewarden.handlers.hudi.timeline import Instant
from lakewarden.handlers.observations import Maker

_SERVICES = frozenset({"CLUSTER", "COMPACT", "LOG_COMPACT"})
_STREAMER = ("deltastreamer.checkpoint.", "streamer.checkpoint.")


def rolled_back(body: bytes) -> tuple[list[str], frozenset[str]]:
    """The instants that a completed rollback has rolled back, and the partitions in which it found files of them.

    Raises `UnreadableHudi`.
    """
    record = decode(body)
    try:
        return [str(each) for each in record["commitsRollback"]], frozenset(record["partitionMetadata"])
    except (KeyError, TypeError) as error:
        raise UnreadableHudi(f"a rollback lacks what each has: {error!r:.200}") from error


def past_commit(instant: Instant, found: InstantMetadata, began: float | None, ended: float) -> PastCommit:
    """What a completed instant says of its history."""
    label = _object(found.extra.get(HUDI_LABEL) or found.extra.get(f"hoodie.{HUDI_LABEL}"))
    maker = maker_of(found.extra)
    return PastCommit(
        instant.time,
        ended,
        str(label.get("writer") or maker.name or "(unknown)"),
        found.operation or instant.completes_as,
        frozenset(each.partition for each in found.touched),
        frozenset(each.partition for each in found.touched if each.operation != "create"),
        began,
        is_known=began is not None,
        is_service=instant.is_table_service or found.operation in _SERVICES,
        is_gates=bool(label),
    )


def maker_of(extra: Mapping[str, str]) -> Maker:
    """Who made a commit: Hudi's streaming sink keeps its checkpoint under a name, and its streamer its source's position."""
    queries = _object(extra.get("_hudi_streaming_sink_checkpoint"))
    streamer = "Hudi Streamer" if any(each.startswith(_STREAMER) for each in extra) else None
    return Maker.of(engine=streamer, job=next(iter(queries), None))


def _object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
