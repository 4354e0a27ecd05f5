"""Which alerts each recorded failure must fire, and when: at each mark of a recording, these and no others.

`before`: nothing has failed yet. `during`: right before the failure ends. `after`: the longest window of an alert, 15 minutes, is
over.
"""

from __future__ import annotations

from typing import Any

from tests.monitoring.failures import AT_A, JOB_A, JOB_BOTH, TABLE
from tests.monitoring.recording import Alerts


def _during(**alerts: Any) -> dict[str, Alerts]:
    """These alerts fire, and none before."""
    return {"before": {}, "during": alerts}


def _only_during(**alerts: Any) -> dict[str, Alerts]:
    """These alerts fire, and none before or after."""
    return {**_during(**alerts), "after": {}}


INCOMPLETE: dict[str, Alerts] = {"after": {"LakewardenLogIncomplete": JOB_A}}
"""The loss is shown for seven days."""
EXPECTED: dict[str, dict[str, Alerts]] = {
    "a store refuses": _only_during(LakewardenLocksRefused=AT_A, LakewardenStoreFails=AT_A),
    # It was granted, an operator has ended the grant, and its writer has not reported.
    "a publish hangs": _during(LakewardenPublishHangs=TABLE) | {"after": {"LakewardenOutcomeUnknown": TABLE}},
    # Its lock is not there for another transaction until an operator's process ends.
    "a stranger keeps the lock": _only_during(LakewardenNoLock=TABLE),
    "a writer bypasses the gate": _during(LakewardenBypassed=TABLE),
    "an agent is killed": _during(LakewardenAgentDown=JOB_A),
    "all agents are killed": _only_during(LakewardenNoAgent=({},), LakewardenAgentDown=JOB_BOTH),
    # It doesn't answer, as if it were down. When it goes on, it reports the locks that it has lost, for 15 minutes.
    "an agent is suspended": _only_during(LakewardenAgentDown=JOB_A),
    "an agent is suspended again and again": _only_during(LakewardenSessionsEnd=AT_A),
    # For half a lease, then for longer than one, and both again.
    "a store hangs again and again": _only_during(
        LakewardenLocksLost=AT_A, LakewardenRenewalsLate=AT_A, LakewardenStoreFails=AT_A
    ),
    "Kafka does not answer": _only_during(LakewardenNotReady=JOB_A),
    "Kafka has lost records": _during(LakewardenLogIncomplete=JOB_A) | INCOMPLETE,
    # The decisions name events that the new topic does not have.
    "a topic is deleted": _during(LakewardenLogCut=AT_A, LakewardenLogIncomplete=JOB_A) | INCOMPLETE,
    # There is no newer agent any more, so the operator deletes its decisions, and the log lacks them.
    "a newer agent has decided": _during(
        LakewardenPartitionRefused=({"instance": "a", "job": "lakewarden", "phase": "refused"},),
        LakewardenNotReady=JOB_A,
    )
    | INCOMPLETE,
    # The events of its writers are refused.
    "a table is stopped": _only_during(LakewardenTableStopped=JOB_A, LakewardenDeadLetters=({},)),
    "writers waste compute": _during(LakewardenComputeWasted=TABLE),
    "a stranger publishes": _only_during(LakewardenDeadLetters=({},)),
    "an agent is overloaded": _only_during(
        LakewardenBehind=({"instance": "a", "job": "lakewarden", "partition": "0"},),
        LakewardenEventLoopSlow=AT_A,
        LakewardenNotReady=JOB_A,
    ),
    # At 90 % for five minutes; then one more transaction, for which the largest is aborted.
    "the memory budget is full": _only_during(LakewardenMemory=JOB_A)
    | {"exceeded": {"LakewardenMemoryReached": AT_A}},
}
UNCERTAIN: dict[str, set[str]] = {
    # It depends on how fast the machine rebuilds a session, and on what a grant or a lock was at that moment.
    "an agent is suspended again and again": {
        "LakewardenNotReady",
        "LakewardenLocksLost",
        "LakewardenOutcomeUnknown",
    },
    # The agent aborts what has waited for `refusal_seconds`, so it depends on the moments of the scrapes.
    "a store refuses": {"LakewardenNoLock"},
    # A transaction may be granted at that moment. It loses its grant.
    "a table is stopped": {"LakewardenOutcomeUnknown"},
    # An agent tries again ever more rarely. Kafka may end between a grant and the report of its commit.
    "Kafka does not answer": {"LakewardenSessionsEnd", "LakewardenOutcomeUnknown"},
}
"""Alerts that a failure may fire, depending on chance."""
TOO_LONG = {"LakewardenLongQueue", "LakewardenNoCommits"}
"""Alerts on what lasts for so long that only written series show it."""
WITH_THE_MACHINE = {"an agent is overloaded"}
"""Failures of which the delays of the event loop are recorded, too."""
