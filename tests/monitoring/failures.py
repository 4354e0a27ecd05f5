"""What a Prometheus sees of two agents, a and b, while one thing fails, in promtool's notation: one value each 15 seconds.

Each case changes some series of the healthy agents. The cases are those that no recording of real agents (`recorded/`) shows:
when an alert fires first, what lasts too long to be recorded, and what fires none. The values follow what an agent shows
(`agent/metrics/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.monitoring.recording import Alerts

LENGTH = 160
"""Values of a series: 40 minutes."""
A, B = 'instance="a"', 'instance="b"'
ORDERS = "s3://lake/orders"
DELAY_BUCKETS = ("0.02", "0.5", "1.0", "2.5", "+Inf")


def _healthy(instance: str) -> dict[str, str]:
    where = f'{{{instance},job="lakewarden"'
    flat, busy = f"0x{LENGTH}", f"0+20x{LENGTH}"
    steps = {
        "acquired": flat,
        "renewed": busy,
        "released": flat,
        "lost": flat,
        "waiting": flat,
        "refused": flat,
    }
    ends = dict.fromkeys(("stopped", "kafka-unreachable", "suspended"), flat)
    answers = {"won": busy, "unknown": flat, "refused": flat, "throttled": flat}
    return {
        f"up{where}}}": f"1x{LENGTH}",
        f"lakewarden_ready{where}}}": f"1x{LENGTH}",
        f'lakewarden_partition_lag_seconds{where},partition="0"}}': f"1.2x{LENGTH}",
        f'lakewarden_partitions{where},phase="live"}}': f"6x{LENGTH}",
        f"lakewarden_touched_memory_bytes{where}}}": f"5e8x{LENGTH}",
        f"lakewarden_touched_memory_limit_bytes{where}}}": f"1e9x{LENGTH}",
        f"lakewarden_memory_evictions_total{where}}}": flat,
        f"lakewarden_stopped_tables{where}}}": flat,
        f"lakewarden_incomplete_logs{where}}}": flat,
        f'lakewarden_open_transactions{where},phase="active",table="{ORDERS}"}}': f"3x{LENGTH}",
        f'lakewarden_open_transactions{where},phase="waiting",table="{ORDERS}"}}': f"1x{LENGTH}",
        f'lakewarden_lost_compute_seconds_total{where},outcome="wasted",table="{ORDERS}"}}': flat,
        f'lakewarden_published_records_total{where},topic="dead-letters"}}': flat,
        f"lakewarden_late_renewals_total{where}}}": flat,
        **{
            f'lakewarden_event_loop_delay_seconds_bucket{where},le="{each}"}}': busy for each in DELAY_BUCKETS
        },
        **{f'lakewarden_lock_steps_total{where},step="{each}"}}': values for each, values in steps.items()},
        **{
            f'lakewarden_sessions_ended_total{where},reason="{each}"}}': values
            for each, values in ends.items()
        },
        **{
            f'lakewarden_store_request_seconds_count{where},answer="{each}",operation="write"}}': values
            for each, values in answers.items()
        },
    }


def _series(name: str, instance: str = A, **labels: str) -> str:
    more = "".join(f',{label}="{value}"' for label, value in sorted(labels.items()))
    return f'{name}{{{instance},job="lakewarden"{more}}}'


def _ended(instance: str) -> dict[str, str]:
    """The series of a process that has ended after two minutes: only `up` goes on."""
    ended = {
        name: values.replace(f"x{LENGTH}", f"x7 _x{LENGTH}") for name, values in _healthy(instance).items()
    }
    return ended | {_series("up", instance): f"1x7 0x{LENGTH}"}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: what it changes, and the alerts with their own labels. At every moment named, no other alert fires."""

    name: str
    changes: Mapping[str, str]
    alerts: Mapping[str, Alerts] = field(default_factory=dict)
    """By moment since the beginning, such as 10m."""

    def series(self) -> dict[str, str]:
        """All series of both agents."""
        return {**_healthy(A), **_healthy(B), **self.changes}


AT_A: Any = ({"instance": "a"},)
"""The labels of an alert that sums over an agent's series."""
JOB_A: Any = ({"instance": "a", "job": "lakewarden"},)
JOB_BOTH: Any = ({"instance": "a", "job": "lakewarden"}, {"instance": "b", "job": "lakewarden"})
TABLE: Any = ({"table": ORDERS},)
STORE = "lakewarden_store_request_seconds_count"
STEPS = "lakewarden_lock_steps_total"
ENDS = "lakewarden_sessions_ended_total"

AFTER_A_MINUTE = f"_x24 60+15x{LENGTH}"


def _condition(name: str) -> str:
    return _series("lakewarden_table_condition_seconds", condition=name, table=ORDERS)


FAILURES = (
    Failure("nothing fails: no alert in forty minutes", {}, {f"{minute}m": {} for minute in range(1, 40)}),
    Failure(
        "an agent is killed, and not started again",
        _ended(A),
        {"3m": {}, "5m": {"LakewardenAgentDown": JOB_A}},
    ),
    Failure(
        "all agents are killed",
        {**_ended(A), **_ended(B)},
        {
            "2m30s": {},
            "3m30s": {"LakewardenNoAgent": ({},)},
            "5m": {"LakewardenNoAgent": ({},), "LakewardenAgentDown": JOB_BOTH},
        },
    ),
    Failure(
        "the agents are restarted in order, one after the other: counters begin at 0 again",
        {
            _series("up"): f"1x7 0x2 1x{LENGTH}",
            _series("lakewarden_ready"): f"1x7 _x2 0x1 1x{LENGTH}",
            _series(STEPS, step="renewed"): f"0+20x7 _x2 0+20x{LENGTH}",
            _series(ENDS, reason="stopped"): f"0x7 _x2 0x{LENGTH}",
        },
        {"2m30s": {}, "5m": {}, "20m": {}},
    ),
    Failure(
        "a rebalance pauses an agent for a few seconds",
        {_series("lakewarden_ready"): f"1x20 0x1 1x{LENGTH}"},
        {"5m15s": {}, "6m": {}},
    ),
    Failure(
        "the process of a lock's owner is suspended for longer than its lease, then resumed",
        {
            _series("up"): f"1x20 0x3 1x{LENGTH}",
            _series(ENDS, reason="suspended"): f"0x20 _x3 1x{LENGTH}",
            _series(STEPS, step="lost"): f"0x20 _x3 4x{LENGTH}",
        },
        {"5m30s": {}, "10m": {"LakewardenLocksLost": AT_A}, "25m": {}},
    ),
    Failure(
        "a process is suspended again and again",
        {_series(ENDS, reason="suspended"): "0x20 1x8 2x8 3x8 4x160"},
        {"8m": {}, "13m": {"LakewardenSessionsEnd": AT_A}},
    ),
    Failure(
        "a store refuses the agent: a session has expired",
        {
            _series(STORE, answer="refused", operation="write"): f"0x20 0+20x{LENGTH}",
            _series(STEPS, step="refused"): f"0x20 0+2x{LENGTH}",
            _condition("lock-refused"): f"_x40 0+15x{LENGTH}",
        },
        {
            "8m": {"LakewardenLocksRefused": AT_A},
            "35m": {"LakewardenLocksRefused": AT_A, "LakewardenStoreFails": AT_A, "LakewardenNoLock": TABLE},
        },
    ),
    Failure(
        "a store throttles the agent",
        {_series(STORE, answer="throttled", operation="write"): f"0x20 0+20x{LENGTH}"},
        {"15m": {"LakewardenStoreFails": AT_A}},
    ),
    # The six below begin at 5m. A page fires within two minutes, also where every transaction that waits is queued.
    Failure(
        "a publish hangs",
        {_condition("publish-hangs"): AFTER_A_MINUTE},
        {"6m": {}, "7m": {"LakewardenPublishHangs": TABLE}, "30m": {"LakewardenPublishHangs": TABLE}},
    ),
    Failure(
        "a foreign holder keeps a table's lock",
        {_condition("lock-held"): f"_x22 35+15x{LENGTH}"},
        {"5m30s": {}, "7m": {"LakewardenNoLock": TABLE}},
    ),
    Failure(
        "an agent is killed with a lock: its lease ends, and the next agent has it",
        {_condition("lock-held"): f"_x22 35 stale _x{LENGTH}"},
        {"6m": {}, "7m": {}},
    ),
    Failure(
        "the store of the locks hangs",
        {_condition("lock-missing"): AFTER_A_MINUTE},
        {"6m": {}, "7m": {"LakewardenNoLock": TABLE}},
    ),
    Failure(
        "a writer without the gate commits again and again",
        {_condition("bypassed"): f"_x21 15+15x{LENGTH}"},
        {"6m": {}, "7m": {"LakewardenBypassed": TABLE}},
    ),
    Failure(
        "a writer without the gate commits once or twice",
        {_condition("bypassed"): f"_x21 15 30 stale _x{LENGTH}"},
        {"6m": {}, "7m": {}},
    ),
    Failure(
        "a queue behind a backfill",
        {_condition("queued"): AFTER_A_MINUTE},
        {"7m": {}, "20m": {}, "21m": {"LakewardenLongQueue": TABLE}},
    ),
    Failure(
        "no commit for long",
        {_condition("no-commits"): f"600+15x{LENGTH}"},
        {"20m": {}, "21m": {"LakewardenNoCommits": TABLE}},
    ),
    Failure(
        "a writer is killed while it publishes",
        {_series("lakewarden_unreported_outcomes", table=ORDERS): f"_x20 1x40 _x{LENGTH}"},
        {"5m30s": {}, "10m": {"LakewardenOutcomeUnknown": TABLE}, "25m": {}},
    ),
    Failure(
        "Kafka doesn't answer",
        {
            _series("lakewarden_ready"): f"1x20 0x{LENGTH}",
            _series("lakewarden_ready", B): f"1x20 0x{LENGTH}",
            _series("lakewarden_partition_lag_seconds", partition="0"): f"1.2x20 _x{LENGTH}",
            _series("lakewarden_partition_lag_seconds", B, partition="0"): f"1.2x20 _x{LENGTH}",
            _series(ENDS, reason="kafka-unreachable"): f"0x20 0+1x{LENGTH}",
            _series(ENDS, B, reason="kafka-unreachable"): f"0x20 1x{LENGTH}",
        },
        {
            "5m15s": {},
            "7m": {"LakewardenNotReady": JOB_BOTH, "LakewardenSessionsEnd": AT_A},
            "10m": {"LakewardenNotReady": JOB_BOTH, "LakewardenSessionsEnd": AT_A},
        },
    ),
    Failure(
        "one transaction touches more and more",
        {_series("lakewarden_touched_memory_bytes"): f"5e8x20 9e8x{LENGTH}"},
        {"8m": {}, "15m": {"LakewardenMemory": JOB_A}},
    ),
)
