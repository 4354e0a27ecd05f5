"""All measurements of one lock: the product's, and those of Hudi's own provider on the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.settings import Settings
from tests.bench import contention, hudi_lock, locks, lost_answers
from tests.bench.figures import over_runs
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

REMOTE_DELAY_SECONDS = 0.015
"""Added to each request to the store: the latency of a store on another machine."""


@dataclass(frozen=True, slots=True)
class LockSizes:
    """The sizes of these measurements."""

    rounds: int
    repetitions: int
    contention_runs: int
    contention_seconds: float
    lost_answers: int
    """Of each kind."""


def measure(
    size: LockSizes, server: S3Server, servers: str, prefix: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The figures of the product. The server's credentials are in the environment."""
    settings = Settings.load(bootstrap_servers=servers, topic_prefix=prefix)
    asyncio.run(ensure_topics(settings, settings.topics, settings.partitions, settings.replication))
    report: dict[str, Any] = {"server": server.used}
    progress("one lock: acquire, renew, release")
    report["operations"] = asyncio.run(
        locks.measure_operations(server, rounds=size.rounds, repetitions=size.repetitions)
    )
    progress("one lock: hand-over")
    report["hand_over"] = asyncio.run(locks.measure_hand_over(server, settings, rounds=size.rounds))

    def contend(endpoint: str | None) -> dict[str, Any]:
        seconds = size.contention_seconds
        return asyncio.run(contention.measure(server, settings, seconds=seconds, endpoint=endpoint))

    report |= _contention(size, server, contend, report["operations"], progress)
    progress("one lock: lost answers")
    report["lost"] = lost_answers.measure(server, trials=size.lost_answers)
    return report


def measure_hudi(size: LockSizes, server: S3Server, progress: Callable[[str], None]) -> dict[str, Any]:
    """The same figures of Hudi's provider."""
    report: dict[str, Any] = {"release": hudi_lock.VERSION}
    progress("Hudi's lock: acquire, renew, release")
    report["operations"] = hudi_lock.measure_operations(
        server, rounds=size.rounds, repetitions=size.repetitions
    )
    progress("Hudi's lock: hand-over")
    report["hand_over"] = hudi_lock.measure_hand_over(server, rounds=size.rounds)

    def contend(endpoint: str | None) -> dict[str, Any]:
        return hudi_lock.measure_contention(server, seconds=size.contention_seconds, endpoint=endpoint)

    report |= _contention(size, server, contend, report["operations"], progress)
    progress("Hudi's lock: lost answers")
    report["lost"] = lost_answers.measure_hudi(server, trials=size.lost_answers)
    return report


def _contention(
    size: LockSizes,
    server: S3Server,
    contend: Callable[[str | None], dict[str, Any]],
    operations: dict[str, Any],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """With and without a delay of the requests."""
    progress(f"{contention.CONTENDERS} contenders")
    runs = range(size.contention_runs)
    direct = over_runs([contend(None) for _ in runs])
    with Proxy(server.endpoint, delay_seconds=REMOTE_DELAY_SECONDS) as proxy:
        delayed = over_runs([contend(proxy.endpoint) for _ in runs])
    return {
        "contention": direct,
        "contention_delayed": {
            **delayed,
            "delay_ms": round(REMOTE_DELAY_SECONDS * 1e3),
            "bound": round(_bound(operations), 1),
        },
    }


def _bound(operations: dict[str, Any]) -> float:
    """Cycles per second if a cycle consisted of the hold and three delayed requests in sequence, and nothing else."""
    request: float = operations["release"]["ms"]["p50"]["median"] / 1e3 + REMOTE_DELAY_SECONDS
    return 1 / (contention.HOLD_SECONDS + 3 * request)
