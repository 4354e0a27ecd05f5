"""Whatever the decoder accepts can be answered: no input at a limit raises, stops a table, or makes a record too large."""

from typing import Any
from unittest import mock

from hypothesis import HealthCheck, event, given, settings, strategies as st

from lakewarden.agent import clock
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import Tick
from tests.unit.agent.serving.owner_in_memory import SetClock, Table, filled

FILLERS = ("n", "é", "\U0001f40b", "\x01", '"', "\u2028", "\x7f")


fillers = st.sampled_from(FILLERS)
sizes = st.sampled_from([1, 100, 491, 500, 505, 511, 512] * 3 + [513])
integers = st.sampled_from(
    [0, 1, 2**31, 2**53, 2**63 - 1, None] * 3 + [-1, -(2**63), 2**63, -(2**63) - 1, 10**4000]
)
MARKERS: dict[str, list[dict[str, str]]] = {
    "none": [],
    "all": [{"partition": "\x01" * 1024, "file_group": "*", "operation": "delete"}],
    "short": [{"partition": "p", "file_group": "f", "operation": "merge"}],
    "most": [{"partition": "p", "file_group": f"f{n}", "operation": "merge"} for n in range(10_000)],
    "too many": [{"partition": "p", "file_group": f"f{n}", "operation": "merge"} for n in range(10_001)],
    "control": [
        {"partition": "\x01" * 1024, "file_group": f"{n:04}" + "\x02" * 1020, "operation": "delete"}
        for n in range(80)
    ],
    "partitions": [
        {"partition": f"{n:04}" + "\x03" * 1020, "file_group": "\x02" * 1000, "operation": "create"}
        for n in range(80)
    ],
    "whales": [
        {
            "partition": "\U0001f40b" * 1024,
            "file_group": f"{n:04}" + "\U0001f40b" * 1020,
            "operation": "append",
        }
        for n in range(100)
    ],
    "too long": [{"partition": "p" * 1025, "file_group": "f", "operation": "merge"}],
}
marker_sets = st.sampled_from(sorted(set(MARKERS) - {"too many", "too long"}) * 3 + ["too many", "too long"])


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A table and three transactions whose names are at and around the limits."""
    path = filled("s3://lake/", "p", draw(st.sampled_from([20, 1023, 1024])))
    if draw(st.booleans()):
        path = "s3://lake/" + draw(st.sampled_from(["é", "\U0001f40b", '"'])) * 1014
    names = [
        (
            filled(f"{number}", draw(fillers), draw(sizes)),
            filled(f"{number % draw(st.integers(1, 3))}", draw(fillers), draw(sizes)),
        )
        for number in range(3)
    ]
    return Table(path, names)


ACTIONS = (
    *("intent", "intent", "intent", "markers", "markers", "beat", "request", "request"),
    *("complete", "abandon", "lock", "lock", "tick", "restart", "forged", "operator"),
    *("loss", "commit", "commit"),
)


def act(draw: Any, table: Table) -> None:  # noqa: C901, PLR0912 - one case per action
    """One event or one thing that happens to the agent."""
    which = draw(st.integers(0, 2))
    match draw(st.sampled_from(ACTIONS)):
        case "intent":
            table.send(
                "commit-intent",
                which,
                batch_id=draw(integers),
                priority=draw(integers),
                admission=draw(st.sampled_from(["optimistic", "queued"])),
                conflict_rule=draw(st.sampled_from(["file-group", "deleted-file", "ordered"])),
                scope=MARKERS[draw(marker_sets)],
                heartbeat_seconds=draw(st.sampled_from([5e-324, 1e-300, 5.0, 300.0])),
                lock=draw(st.sampled_from([None, "s3://lake/locks/x.json", "s3://[/x", "\x01" * 2048])),
            )
        case "markers":
            table.send("marker-created", which, markers=MARKERS[draw(marker_sets)])
        case "beat":
            table.send("writer-heartbeat", which, seq=draw(integers))
        case "request":
            table.send("commit-requested", which, seq=draw(integers), markers=MARKERS[draw(marker_sets)])
        case "complete":
            version = draw(
                st.sampled_from(
                    [None, "", "v", "\x01" * 1024, "\U0001f40b" * 1024, "v" * 1025, "v" * 1_040_000]
                )
            )
            named = table.grant_of(which) or draw(fillers) * 100
            table.send("commit-completed", which, grant=named, version=version, batch_id=draw(integers))
        case "abandon":
            table.send(
                "transaction-abandoned", which, reason=draw(fillers) * draw(st.sampled_from([0, 1000, 1001]))
            )
        case "operator":
            operator = filled("o", draw(fillers), draw(sizes))
            reason = draw(fillers) * draw(st.sampled_from([0, 1000, 1001]))
            if draw(st.booleans()):
                table.send("abort-requested", which, operator=operator, reason=reason)
            else:
                table.send(
                    "ledger-corrected", which, operator=operator, reason=reason, batch_id=draw(integers)
                )
        case "forged":
            table.send("commit-completed", which, writer="other", grant="\x01" * 128, version="\x01" * 1024)
        case "commit":
            # The whole way, up to a completion or a lapse.
            table.send("commit-intent", which, batch_id=draw(integers), heartbeat_seconds=300)
            table.send("commit-requested", which, seq=draw(integers) or 0, markers=MARKERS[draw(marker_sets)])
            table.lock("confirmed")
            table.send("writer-heartbeat", which, seq=2**63 - 1)
            if (grant := table.grant_of(which)) is not None and draw(st.booleans()):
                version = draw(st.sampled_from([None, "\x01" * 1024, "\U0001f40b" * 1024]))
                table.send("commit-completed", which, grant=grant, version=version)
                table.send("commit-intent", which, transaction=f"again {which}", batch_id=0)
        case "loss":
            # Two that touch the same places: one loses, and what it lost on is recorded.
            markers = MARKERS[draw(marker_sets)]
            for each in (which, (which + 1) % 3):
                table.send("commit-intent", each)
                table.send("marker-created", each, markers=markers)
        case "lock":
            table.lock(draw(st.sampled_from(["confirmed", "confirmed", "confirmed", "gone", "forbidden"])))
        case "tick":
            table.now += draw(st.sampled_from([1.0, 21.0]))
            caught_up = CaughtUp(0.0, table.now)
            if table.uri in table.owner.tables.states:
                table.owner.tables.step(table.uri, Tick(table.now, table.owner.position - 1, caught_up))
        case "restart":
            table.start()
        case action:
            raise AssertionError(action)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(st.data())
def test_every_event_that_the_decoder_accepts_can_be_answered(data: st.DataObject) -> None:
    """One record that an agent can't answer would end each agent that reads it, one after the other."""
    table: list[Table] = []
    with mock.patch.object(clock, "time", SetClock(lambda: table[0].now if table else 0.0)):
        table.append(data.draw(tables()))
        for _ in range(data.draw(st.integers(1, 14))):
            act(data.draw, table[0])
            assert table[0].owner.tables.stopped.reasons == {}
    event(f"accepted: {min(table[0].accepted, 5)}")
    event(f"grants: {any(table[0].grant_of(which) for which in range(3))}")
