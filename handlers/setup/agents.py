"""The agents of the consumer group, as its members' metadata names them."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakewarden.handlers.setup.findings import Finding

MAX_NAMED = 5
"""Agents that a line names. All are counted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group. An agent of an earlier release names neither its id nor its version."""

    agent: str | None
    version: str | None


def judge_agents(group: str, members: Sequence[Member], *, started: bool) -> Finding:
    """The finding about the agents that run now: none, of one version, or of several. `started`: there was one before."""
    if not members:
        nothing = "no agent is in the group: nothing is granted"
        return Finding("agents", "problem" if started else "warning", group, nothing, "start an agent")
    versions = sorted({each.version or "an earlier release" for each in members})
    count = f"{len(members)} agent{'' if len(members) == 1 else 's'}"
    named = sorted(each.agent for each in members if each.agent is not None)
    who = f" ({', '.join(named[:MAX_NAMED])}{', …' if len(named) > MAX_NAMED else ''})" if named else ""
    if len(versions) > 1:
        return Finding(
            "agents",
            "warning",
            group,
            f"{count} of different versions: {', '.join(versions)}{who}",
            "finish the upgrade; docs/run.md says in which order",
        )
    return Finding("agents", "ok", group, f"{count} of version {versions[0]}{who}")
