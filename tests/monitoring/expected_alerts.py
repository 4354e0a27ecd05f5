"""Which alerts each recorded failure must fire, and when: at each mark of a recording, these and no others.

`before`: nothing has failed yet. `during`: right before the failure ends. `after`: the longest window of an alert, 15 minutes, is
over.
"""

from __future__ import annotations

from tests.monitoring.failures import AT_A, JOB_A, JOB_BOTH, TABLE
from tests.monitoring.recording import Alerts

EXPECTED: dict[str, dict[str, Alerts]] = {
    "a store refuses": {
        "before": {},
        "during": {"LakewardenLocksRefused": AT_A, "LakewardenStoreFails": AT_A},
        "after": {},
    },
    # It was granted, an operator has ended the grant, and its writer has not reported.
    "a publish hangs": {
        "before": {},
        "during": {"LakewardenPublishHangs": TABLE},
        "after": {"LakewardenOutcomeUnknown": TABLE},
    },
    # Its lock is not there for another transaction until an operator's process ends.
    "a stranger keeps the lock": {"before": {}, "during": {"LakewardenNoLock": TABLE}, "after": {}},
    "a writer bypasses the gate": {"before": {}, "during": {"LakewardenBypassed": TABLE}},
    "an agent is killed": {"before": {}, "during": {"LakewardenAgentDown": JOB_A}},
    "all agents are killed": {
        "before": {},
        "during": {"LakewardenNoAgent": ({},), "LakewardenAgentDown": JOB_BOTH},
        "after": {},
    },
    # It doesn't answer, as if it were down. When it goes on, it reports the locks that it has lost, for 15 minutes.
    "an agent is suspended": {"before": {}, "during": {"LakewardenAgentDown": JOB_A}, "after": {}},
    "an agent is suspended again and again": {
        "before": {},
        "during": {"LakewardenSessionsEnd": AT_A},
        "after": {},
    },
    # For half a lease, then for longer than one, and both again.
    "a store hangs again and again": {
        "before": {},
        "during": {"LakewardenLocksLost": AT_A, "LakewardenRenewalsLate": AT_A, "LakewardenStoreFails": AT_A},
        "after": {},
    },
    "Kafka does not answer": {"before": {}, "during": {"LakewardenNotReady": JOB_A}, "after": {}},
    # The loss is shown for seven days.
    "Kafka has lost records": {
        "before": {},
        "during": {"LakewardenLogIncomplete": JOB_A},
        "after": {"LakewardenLogIncomplete": JOB_A},
    },
    # The decisions name events that the new topic does not have.
    "a topic is deleted": {
        "before": {},
        "during": {"LakewardenLogCut": AT_A, "LakewardenLogIncomplete": JOB_A},
        "after": {"LakewardenLogIncomplete": JOB_A},
    },
    # There is no newer agent any more, so the operator deletes its decisions, and the log lacks them.
    "a newer agent has decided": {
        "before": {},
        "during": {
            "LakewardenPartitionRefused": ({"instance": "a", "job": "lakewarden", "phase": "refused"},),
            "LakewardenNotReady": JOB_A,
        },
        "after": {"LakewardenLogIncomplete": JOB_A},
    },
    # The events of its writers are refused.
    "a table is stopped": {
        "before": {},
        "during": {"LakewardenTableStopped": JOB_A, "LakewardenDeadLetters": ({},)},
        "after": {},
    },
    "writers waste compute": {"before": {}, "during": {"LakewardenComputeWasted": TABLE}},
    "a stranger publishes": {"before": {}, "during": {"LakewardenDeadLetters": ({},)}, "after": {}},
    "an agent is overloaded": {
        "before": {},
        "during": {
            "LakewardenBehind": ({"instance": "a", "job": "lakewarden", "partition": "0"},),
            "LakewardenEventLoopSlow": AT_A,
            "LakewardenNotReady": JOB_A,
        },
        "after": {},
    },
    # At 90 % for five minutes; then one more transaction, for which the largest is aborted.
    "the memory budget is full": {
        "before": {},
        "during": {"LakewardenMemory": JOB_A},
        "exceeded": {"LakewardenMemoryReached": AT_A},
        "after": {},
    },
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
