"""The figures of the locks as a table; beside those of Hudi's own lock provider, where the same run has measured them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.bench import lost_answers
from tests.bench.contention import CONTENDERS, HOLD_SECONDS

Row = tuple[str, str, str, str]
"""Title, figure, target and Hudi's figure."""

OPERATIONS = {
    "acquire": ("acquire an existing free lock", "2 requests"),
    "renew": ("renew", "1 request"),
    "release": ("release", "1 request"),
}
LOST = {
    "acquire": "the answer to an acquisition is lost: until the writer holds the lock",
    "renew": "the answer to a renewal is lost: until it is renewed, or another writer holds the lock",
    "release": "the answer to the release is lost: until another writer holds the lock",
}


def table(report: dict[str, Any], hudi: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """The table that is printed. Without Hudi's figures it has no column for them."""
    head: Row = (
        "the lock, on a local S3 server",
        "measured",
        "target",
        f"Hudi {hudi['release']}" if hudi else "",
    )
    return [row if hudi else row[:3] for row in (head, *_rows(report, hudi or {}))]


def footnote(hudi: dict[str, Any] | None) -> str:
    """What the table's figures are."""
    if hudi is None:
        return 'Beside Hudi\'s own lock: make bench PEERS=hudi ARGS="--workload lock", and docs/benchmarks.md, "The lock".'
    return (
        "Hudi: its StorageBasedLockProvider on the same server in this run, all contenders in one JVM, with the tests' own\n"
        "client for S3. A wait that is unfinished at the end of a run counts with the time until then."
    )


def _rows(report: dict[str, Any], hudi: dict[str, Any]) -> Iterator[Row]:
    for name, (title, target) in OPERATIONS.items():
        yield title, _operation(report["operations"][name]), target, _of(hudi, "operations", name, _operation)
    yield from _hand_over(report["hand_over"], hudi.get("hand_over"))
    hold = f"{CONTENDERS} contenders, each holding it for {HOLD_SECONDS * 1e3:.0f} ms"
    yield from _contention(report["contention"], hudi.get("contention"), hold, "≥ 60 cycles per second")
    delayed = report["contention_delayed"]
    yield from _contention(
        delayed,
        hudi.get("contention_delayed"),
        f"the same, each request {delayed['delay_ms']} ms later",
        f"at most {delayed['bound']:.0f} per second (hold and 3 requests)",
    )
    yield (
        f"with a lease of {lost_answers.LEASE_SECONDS} s, renewed every {lost_answers.RENEW_SECONDS} s:",
        "",
        "",
        "",
    )
    for name, title in LOST.items():
        yield f"  {title}", _lost(report["lost"][name]), "", _of(hudi, "lost", name, _lost)
    if "renewals" in report:
        yield from _renewals(report["renewals"])


def _of(hudi: dict[str, Any], part: str, name: str, text: Callable[[dict[str, Any]], str]) -> str:
    return text(hudi[part][name]) if hudi else ""


def _operation(figure: dict[str, Any]) -> str:
    p50, p99 = figure["ms"]["p50"], figure["ms"]["p99"]
    requests = f"{figure['requests']:g} request{'s' if figure['requests'] != 1 else ''}"
    return f"p50 {_spread(p50, '.1f')} ms, p99 {_spread(p99, '.0f')} ms, {requests}"


def _hand_over(report: dict[str, Any], hudi: dict[str, Any] | None) -> Iterator[Row]:
    whole = report["ms"]["whole"]
    yield (
        "hand-over to a waiting agent, from the release on",
        f"p50 {whole['p50']:.1f} ms, p99 {whole['p99']:.0f} ms, {report['requests']:g} requests of the waiter",
        "",
        f"p50 {hudi['ms']['whole']['p50']:.0f} ms, max {hudi['ms']['whole']['max']:.0f} ms" if hudi else "",
    )
    parts = " + ".join(f"{report['ms'][name]['p50']:.1f}" for name in ("release", "kafka", "read", "write"))
    yield "  release + audit log + read + write, p50", f"{parts} ms", "", ""


def _contention(
    report: dict[str, Any], hudi: dict[str, Any] | None, title: str, target: str
) -> Iterator[Row]:
    yield title, _cycles(report), target, _cycles(hudi) if hudi else ""
    yield "  fairness and waits", _waits(report), "Jain ≥ 0.99, longest < 1 s", _waits(hudi) if hudi else ""


def _cycles(report: dict[str, Any]) -> str:
    rate = f"{_spread(report['cycles_per_second'], '.0f')} cycles per second"
    return f"{rate}, {report['requests_per_cycle']['median']:.1f} requests each"


def _waits(report: dict[str, Any]) -> str:
    longest = max(report["longest_wait_ms"]["each"]) / 1e3
    waits = f"p99 {report['wait_p99_ms']['median'] / 1e3:.2f} s, longest {longest:.2f} s"
    return f"Jain {_spread(report['jain'], '.3f')}, {waits}"


def _lost(figure: dict[str, Any]) -> str:
    seconds: float = figure["seconds"]
    text = f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    if (stopped := figure.get("stopped_after_seconds")) is not None:
        text += f"; the writer is interrupted after {stopped:.1f} s"
    if "raised" in figure:
        text += f"; the release raises {figure['raised']}"
    return text


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
