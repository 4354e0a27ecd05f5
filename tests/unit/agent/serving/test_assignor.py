"""The assignor between aiokafka's coordinator and the rules of the assignment."""

from importlib.metadata import version
from typing import Any

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from lakewarden.agent.serving.assignor import StickyAssignor, member_of
from lakewarden.handlers.setup import Member

TOPIC = "lakewarden.writers"


class Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        assert topic == TOPIC
        return set(range(12))


class Group:
    """Members with their assignors; each round is encoded and decoded as on the wire."""

    def __init__(self, **members: Any) -> None:
        self.members: dict[str, Any] = members

    def round(self, leader: str) -> dict[str, list[int]]:
        """Run a round. Returns the partitions of each member."""
        cluster: Any = Cluster()
        metadata = {
            name: ConsumerProtocolMemberMetadata.decode(each.metadata([TOPIC]).encode())
            for name, each in self.members.items()
        }
        assigned = self.members[leader].assign(cluster, metadata)
        found = {}
        for name, each in self.members.items():
            mine = ConsumerProtocolMemberAssignment.decode(assigned[name].encode())
            each.on_assignment(mine)
            found[name] = [partition.partition for partition in mine.partitions()]
        return found


def test_partitions_stay_from_round_to_round() -> None:
    group = Group(a=StickyAssignor(TOPIC), b=StickyAssignor(TOPIC), c=StickyAssignor(TOPIC))
    before = group.round("a")
    del group.members["b"]

    now = group.round("c")

    assert set(before["a"]) <= set(now["a"])
    assert set(before["c"]) <= set(now["c"])


def test_each_member_learns_which_partitions_the_round_has_assigned_to_anyone() -> None:
    """Also one that has got none, and takes itself for a spare one. A round without the topic assigns nothing."""
    members = {name: StickyAssignor(TOPIC) for name in "abcdefghijklmn"}
    assigned = Group(**members).round("a")

    every = frozenset(number for mine in assigned.values() for number in mine)
    assert {each.assigned for each in members.values()} == {every}
    assert [] in assigned.values()


def test_a_member_that_missed_a_round_claims_nothing_that_others_got_since() -> None:
    """An agent was suspended for longer than its session timeout."""
    group = Group(a=StickyAssignor(TOPIC), b=StickyAssignor(TOPIC))
    group.round("a")
    suspended = group.members.pop("b")
    group.round("a")
    group.members["c"] = StickyAssignor(TOPIC)
    before = group.round("a")
    group.members["b"] = suspended

    now = group.round("a")

    assert set(now["a"]) <= set(before["a"])
    assert set(now["c"]) <= set(before["c"])


@pytest.mark.parametrize("leader", ["old", "new"])
def test_agents_of_an_earlier_release_form_one_group_with_the_new_ones(leader: str) -> None:
    """A rolling upgrade: whichever of them leads the round, all partitions have an agent."""
    group = Group(old=RoundRobinPartitionAssignor, new=StickyAssignor(TOPIC))

    assigned = [group.round(leader) for _ in range(2)]

    assert sorted(assigned[1]["old"] + assigned[1]["new"]) == list(range(12))
    assert RoundRobinPartitionAssignor.name == StickyAssignor.name


@pytest.mark.parametrize("user_data", [b"\xff", b"[]", b'{"round": "x"}', b'{"partitions": 3}', b"null"])
def test_a_claim_that_cannot_be_read_is_none(user_data: bytes) -> None:
    """Another program has joined the group by mistake."""
    cluster: Any = Cluster()
    members = {"strange": ConsumerProtocolMemberMetadata(0, [TOPIC], user_data)}

    assigned = StickyAssignor(TOPIC).assign(cluster, members)

    assert len(assigned["strange"].partitions()) == 12


def test_a_member_names_its_agent_and_its_version() -> None:
    sent = StickyAssignor(TOPIC, "agent-1").metadata([TOPIC]).user_data

    assert member_of(sent) == Member("agent-1", version("lakewarden"))


@pytest.mark.parametrize("user_data", [b"", b"\xff", b"[]", b'{"agent": 3, "version": null}'])
def test_a_member_that_names_no_agent_is_of_an_earlier_release(user_data: bytes) -> None:
    assert member_of(user_data) == Member(None, None)
