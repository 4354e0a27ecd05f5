"""The agent's assignor for aiokafka: a sticky one, by the rules of `handlers/group/ownership.py`.

aiokafka's own `StickyPartitionAssignor` is not used:

- Its claims never have a generation (aiokafka doesn't call `on_generation_assignment`), so the claim of a member that missed a
  round is as good as that of the present owner.
- It keeps its state in the class, so all consumers of a process share it.
- A consumer of aiokafka that offers two assignors joins each round twice, so agents can't move from one to the other in a rolling
  restart.

For the last reason this assignor has the name `roundrobin`, that of earlier releases: agents of both form one group. The leader
of a round assigns for all. A leader of an earlier release ignores the claims, and its assignment has no round.

An assignment also names all partitions that its round has assigned: a member without one knows whether others own them.

Claims and rounds are JSON in the `user_data` of the members' metadata and of the assignments. A member's also has the agent's id
and version, for `lakewarden doctor`; no rule depends on them.
"""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from lakewarden.events.codec import json_object
from lakewarden.handlers.group.ownership import Claim, assign
from lakewarden.handlers.setup import Member

VERSION = 0


class StickyAssignor:
    """The assignor of one consumer, which consumes one topic. aiokafka takes an object like this in place of a class."""

    name = "roundrobin"

    def __init__(self, topic: str, agent: str | None = None) -> None:
        self._topic = topic
        self._agent = agent
        self._claim = Claim()
        self.assigned: frozenset[int] | None = None
        """The partitions that the last round has assigned to anyone. None: its leader, of an earlier release, doesn't say."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """What this member sends when it joins a round."""
        claim = {"round": self._claim.round, "partitions": self._claim.partitions}
        member = {"agent": self._agent, "version": version("lakewarden")}
        return ConsumerProtocolMemberMetadata(VERSION, list(topics), json.dumps(claim | member).encode())

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """The assignment that the leader of a round sends to the members."""
        claims = {name: _claim(metadata.user_data) for name, metadata in members.items()}
        partitions = assign(cluster.partitions_for_topic(self._topic) or (), claims)
        fields = {
            "round": 1 + max(each.round for each in claims.values()),
            "assigned": sorted(number for mine in partitions.values() for number in mine),
        }
        this_round = json.dumps(fields).encode()
        return {
            name: ConsumerProtocolMemberAssignment(VERSION, [(self._topic, mine)], this_round)
            for name, mine in partitions.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the assignment, for the claim of the next round."""
        mine = tuple(each.partition for each in assignment.partitions() if each.topic == self._topic)
        self._claim = Claim(_claim(assignment.user_data).round, mine)
        self.assigned = _assigned(assignment.user_data)


def _assigned(user_data: bytes) -> frozenset[int] | None:
    try:
        return frozenset(int(each) for each in json_object(user_data)["assigned"])
    except (ValueError, TypeError, KeyError):
        return None


def _claim(user_data: bytes) -> Claim:
    """The claim in `user_data`. A member of an earlier release sends none; what can't be read is none."""
    try:
        fields = json_object(user_data)
        return Claim(int(fields.get("round", 0)), tuple(int(each) for each in fields.get("partitions", ())))
    except (ValueError, TypeError):
        return Claim()


def member_of(user_data: bytes) -> Member:
    """The agent in a member's `user_data`. A member of an earlier release names none; what can't be read names none."""
    fields = json_object(user_data)
    agent, release = fields.get("agent"), fields.get("version")
    return Member(agent if isinstance(agent, str) else None, release if isinstance(release, str) else None)
