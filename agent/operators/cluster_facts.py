"""What Kafka says about topics and the agents' group, and what this user may do there, which is tried.

Each try has no effect, whatever the rights. Brokers check the right before everything else:

| right | request | answer with the right |
| --- | --- | --- |
| read a topic | a fetch beyond its end | the offset is out of range |
| write a topic | a produce request without records, whose number of acknowledgements doesn't exist | it is invalid |
| read a group | a heartbeat of a member that the group doesn't have | the member is unknown |
"""

from typing import Any

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.protocol.api import Request
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from lakewarden.agent.serving.assignor import member_of
from lakewarden.handlers.setup import Member, TopicFacts

_BEYOND_THE_END = 2**62
_NO_SUCH_ACKS = 2
_NO_MEMBER, _NO_GENERATION = "lakewarden-doctor", -1
_INVALID_RECORD = 87  # aiokafka has no name for it
_DENIED = (
    errors.TopicAuthorizationFailedError.errno,
    errors.ClusterAuthorizationFailedError.errno,
    errors.GroupAuthorizationFailedError.errno,
)
_ALLOWED = (
    errors.NoError.errno,
    errors.OffsetOutOfRangeError.errno,
    errors.NotLeaderForPartitionError.errno,
    errors.InvalidRequiredAcksError.errno,
    _INVALID_RECORD,
    errors.UnknownMemberIdError.errno,
    errors.IllegalGenerationError.errno,
    errors.RebalanceInProgressError.errno,
)
"""Answers that brokers give after they have checked the right."""


async def topic_facts(
    admin: AIOKafkaAdminClient, names: list[str]
) -> tuple[int, dict[str, TopicFacts], set[str]]:
    """The number of brokers, the topics that this user sees, without their settings, and the topics that Kafka hides."""
    answer = (await _send(admin, MetadataRequest(names, allow_auto_topic_creation=False))).to_object()
    known: dict[str, TopicFacts] = {}
    hidden: set[str] = set()
    for topic in answer["topics"]:
        name, code = topic["topic"], topic["error_code"]
        if code == errors.TopicAuthorizationFailedError.errno:
            hidden.add(name)
        elif code == errors.UnknownTopicOrPartitionError.errno:
            continue
        elif code:
            raise errors.for_code(code)(name)
        else:
            partitions = sorted(topic["partitions"], key=lambda each: each["partition"])
            known[name] = TopicFacts(
                name,
                tuple(len(each["replicas"]) for each in partitions),
                tuple(each["partition"] for each in partitions if each["leader"] < 0),
                await _rights_on_topic(admin, name),
            )
    return len(answer["brokers"]), known, hidden


async def members_of(admin: AIOKafkaAdminClient, group: str) -> tuple[Member, ...]:
    """Raises `GroupAuthorizationFailedError` if this user may not describe the group."""
    [answer] = await admin.describe_consumer_groups([group])
    [(code, _, _, _, _, members, *_)] = answer.groups
    if code:
        raise errors.for_code(code)(group)
    decoded = [_subscription(metadata) for *_, metadata, _ in members]
    return tuple(Member(None, None) if each is None else member_of(each.user_data) for each in decoded)


async def rights_on_group(admin: AIOKafkaAdminClient, group: str) -> frozenset[str] | None:
    """What this user may do with the group. None: the answer doesn't say."""
    heartbeat = HeartbeatRequest(group, _NO_GENERATION, _NO_MEMBER)
    answer = await _send(admin, heartbeat, await admin.find_coordinator(group))
    return _tried({"read": answer.error_code})


async def _rights_on_topic(admin: AIOKafkaAdminClient, name: str) -> frozenset[str] | None:
    # The first partition, of any broker: one that doesn't lead it checks the right, too.
    fetch = FetchRequest(0, 0, 1, 0, [(name, [(0, _BEYOND_THE_END, 1)])])
    produce = ProduceRequest(None, _NO_SUCH_ACKS, 1000, [(name, [(0, b"")])])
    codes: dict[str, int] = {}
    for right, request in (("read", fetch), ("write", produce)):
        [(_, [(_, codes[right], *_)])] = (await _send(admin, request)).topics
    return _tried(codes)


def _tried(codes: dict[str, int]) -> frozenset[str] | None:
    """The rights, by the answers to the tries. None if an answer doesn't say."""
    if any(code not in _DENIED + _ALLOWED for code in codes.values()):
        return None
    return frozenset(right for right, code in codes.items() if code in _ALLOWED)


async def _send(admin: AIOKafkaAdminClient, request: Request[Any], broker: int | None = None) -> Any:
    return await admin._send_request(request, broker)  # noqa: SLF001 - the public calls don't send these requests


def _subscription(metadata: bytes | None) -> Any:
    """None: the group is rebalancing, or another program has joined it."""
    try:
        return ConsumerProtocolMemberMetadata.decode(metadata or b"")
    except ValueError:
        return None
