"""The figures of the locks as a table, beside those of Hudi's own lock provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.contention import CONTENDERS, HOLD_SECONDS

HEAD = ("the lock, on a local S3 server", "measured", "target", "Hudi 1.2.0 (*)")
FOOTNOTE = (
    "(*) StorageBasedLockProvider on versitygw in one JVM. Measured once on a machine of the same kind (2 vCPUs of an AMD EPYC, "
    "loopback),\n    not measured again here."
)

Row = tuple[str, str, str, str]


def rows(report: dict[str, Any]) -> Iterator[Row]:
    """Title, figure, target and Hudi's figure of each row."""
    yield from _operations(report["operations"])
    yield from _hand_over(report["hand_over"])
    hold = f"{CONTENDERS} contenders, each holding it for {HOLD_SECONDS * 1e3:.0f} ms"
    yield from _contention(
        report["contention"],
        hold,
        ("≥ 60 cycles per second", "87–101 cycles per second"),
        ("Jain ≥ 0.99, longest < 1 s", "Jain 0.55–0.72, longest 27–43 s"),
    )
    delayed = report["contention_delayed"]
    yield from _contention(
        delayed,
        f"the same, each request {delayed['delay_ms']} ms later",
        (f"at most {delayed['bound']:.0f} per second (hold and 3 requests)", ""),
        ("Jain ≥ 0.99, longest < 1 s", ""),
    )
    yield from _renewals(report["renewals"])


def _operations(report: dict[str, Any]) -> Iterator[Row]:
    titles = {
        "acquire": ("acquire an existing free lock", "2 requests", "5.8 ms, p99 17–23 ms, 3 requests"),
        "renew": ("renew", "1 request", "2.2 ms, p99 9–12 ms"),
        "release": ("release", "1 request", "2.1 ms, p99 10–11 ms, 1 request"),
    }
    for name, (title, target, hudi) in titles.items():
        each = report[name]
        p50, p99 = each["ms"]["p50"], each["ms"]["p99"]
        requests = f"{each['requests']:g} request{'s' if each['requests'] != 1 else ''}"
        yield (
            title,
            f"p50 {_spread(p50, '.1f')} ms, p99 {_spread(p99, '.0f')} ms, {requests}",
            target,
            hudi,
        )


def _hand_over(report: dict[str, Any]) -> Iterator[Row]:
    whole = report["ms"]["whole"]
    yield (
        "hand-over to a waiting agent, from the release on",
        f"p50 {whole['p50']:.1f} ms, p99 {whole['p99']:.0f} ms, {report['requests']:g} requests of the waiter",
        "",
        "retries once per second",
    )
    parts = " + ".join(f"{report['ms'][name]['p50']:.1f}" for name in ("release", "kafka", "read", "write"))
    yield "  release + audit log + read + write, p50", f"{parts} ms", "", ""


def _contention(
    report: dict[str, Any], title: str, cycles: tuple[str, str], fairness: tuple[str, str]
) -> Iterator[Row]:
    cycle_rate = f"{_spread(report['cycles_per_second'], '.0f')} cycles per second"
    yield title, f"{cycle_rate}, {report['requests_per_cycle']['median']:.1f} requests each", *cycles
    waits = f"p99 {report['wait_p99_ms']['median'] / 1e3:.2f} s, longest {max(report['longest_wait_ms']['each']) / 1e3:.2f} s"
    yield "  fairness and waits", f"Jain {_spread(report['jain'], '.3f')}, {waits}", *fairness


def _renewals(report: dict[str, Any]) -> Iterator[Row]:
    store, pause = report["store_core"], report["pause"]
    yield (
        f"{report['locks']:,} locks of one agent, renewed every {report['renew_seconds']:g} s",
        f"{report['agent_core']:.2f} of a core" + ("" if store is None else f", the store {store:.2f}"),
        "< 1 core",
        "",
    )
    yield "  delay of the renewals beyond the interval", _milliseconds(report["late_ms"]), "", ""
    yield (
        "  time of a renewal, with the wait for other renewals",
        _milliseconds(report["duration_ms"]),
        "",
        "",
    )
    yield (
        f"  after a suspension of {pause['seconds']:g} s",
        f"all renewed within {pause['all_renewed_after_seconds']:.1f} s",
        "",
        "",
    )
    yield "  leases lost", f"{report['lost']}", "0", ""


def _milliseconds(figure: dict[str, float]) -> str:
    return f"p50 {figure['p50']:.0f} ms, p99 {figure['p99']:.0f} ms, max {figure['max']:.0f} ms"


def _spread(figure: dict[str, Any], form: str) -> str:
    """The median of the runs, and their range."""
    low, high = format(min(figure["each"]), form), format(max(figure["each"]), form)
    return f"{figure['median']:{form}}" + ("" if low == high else f" ({low}–{high})")
