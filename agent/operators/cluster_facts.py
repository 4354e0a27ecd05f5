"""Three Kafka requests for `lakewarden doctor` that aiokafka lacks, with its types.

- Metadata v8 and DescribeGroups v4 return which operations the user may do (KIP-430). aiokafka has older versions, or reads their
  answers without that field.
- DescribeQuorum v1 returns when each voter last fetched, by the active controller's clock. For the controller itself that is
  the present time. Kafka has no other request for a broker's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from lakewarden.agent.serving.assignor import member_of
from lakewarden.handlers.setup.agents import Member
from lakewarden.handlers.setup.clocks import ClockReading
from lakewarden.handlers.setup.topics import TopicFacts

_OPERATIONS = {3: "read", 4: "write", 5: "create", 8: "describe", 10: "describe-configs", 11: "alter-configs"}
"""Kafka's codes of operations; the answer's bit of the same number says whether the user may."""
_NOT_ASKED = -(2**31)
_QUORUM_TOPIC = "__cluster_metadata"
_TEXT = String("utf-8")
_COMPACT = CompactString("utf-8")


class _MetadataResponse(Response):  # type: ignore[misc] # aiokafka has no types
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc] # likewise
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", Array(_TEXT)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _GroupsResponse(Response):  # type: ignore[misc] # likewise
    API_KEY = 15
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", _TEXT),
                ("state", _TEXT),
                ("protocol_type", _TEXT),
                ("protocol", _TEXT),
                (
                    "members",
                    Array(
                        ("member_id", _TEXT),
                        ("group_instance_id", _TEXT),
                        ("client_id", _TEXT),
                        ("client_host", _TEXT),
                        ("member_metadata", Bytes),
                        ("member_assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class _GroupsStruct(RequestStruct):  # type: ignore[misc] # likewise
    API_KEY = 15
    API_VERSION = 4
    RESPONSE_TYPE = _GroupsResponse
    SCHEMA = Schema(("groups", Array(_TEXT)), ("include_authorized_operations", Boolean))


_REPLICA = CompactArray(
    ("replica_id", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
    ("tags", TaggedFields),
)


class _QuorumResponse(Response):  # type: ignore[misc] # likewise
    API_KEY = 55
    API_VERSION = 1
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic", _COMPACT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("current_voters", _REPLICA),
                        ("observers", _REPLICA),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _QuorumStruct(RequestStruct):  # type: ignore[misc] # likewise
    FLEXIBLE_VERSION = True
    API_KEY = 55
    API_VERSION = 1
    RESPONSE_TYPE = _QuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", _COMPACT),
                ("partitions", CompactArray(("partition", Int32), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Metadata(Request[_MetadataStruct]):  # type: ignore[misc] # likewise
    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, struct: Any) -> Any:
        return struct(self._topics, False, False, True)  # noqa: FBT003 - the fields of the schema, by position


class _Groups(Request[_GroupsStruct]):  # type: ignore[misc] # likewise
    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, struct: Any) -> Any:
        return struct([self._group], True)  # noqa: FBT003 - likewise


class _Quorum(Request[_QuorumStruct]):  # type: ignore[misc] # likewise
    API_KEY = 55

    def build(self, struct: Any) -> Any:
        return struct([(_QUORUM_TOPIC, [(0, {})], {})], {})


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group: what this user may do with it, and its members."""

    operations: frozenset[str] | None
    members: tuple[Member, ...]


async def topic_facts(
    admin: AIOKafkaAdminClient, names: list[str]
) -> tuple[int, dict[str, TopicFacts], set[str]]:
    """The number of brokers, the topics that this user sees, without their settings, and the topics that Kafka hides."""
    answer = await admin._send_request(_Metadata(names))  # noqa: SLF001 - no public way to a request of one's own
    found: dict[str, TopicFacts] = {}
    denied: set[str] = set()
    for code, name, _, partitions, operations in answer.topics:
        if code == TopicAuthorizationFailedError.errno:
            denied.add(name)
        elif code == UnknownTopicOrPartitionError.errno:
            continue
        elif code:
            raise for_code(code)(name)
        else:
            by_number = sorted(partitions, key=lambda each: each[1])
            found[name] = TopicFacts(
                name,
                tuple(len(replicas) for _, _, _, _, replicas, *_ in by_number),
                tuple(number for _, number, leader, *_ in by_number if leader < 0),
                _operations(operations),
            )
    return len(answer.brokers), found, denied


async def group_facts(admin: AIOKafkaAdminClient, group: str) -> GroupFacts:
    """Raises `GroupAuthorizationFailedError` if this user may not describe the group."""
    coordinator = await admin.find_coordinator(group)
    answer = await admin._send_request(_Groups(group), coordinator)  # noqa: SLF001 - likewise
    [(code, _, _, _, _, members, operations)] = answer.groups
    if code:
        raise for_code(code)(group)
    return GroupFacts(_operations(operations), tuple(_member(metadata) for *_, metadata, _ in members))


async def controller_clock(admin: AIOKafkaAdminClient, wall_ms: Callable[[], int]) -> ClockReading:
    """The active controller's clock. Raises `KafkaError` without `describe` on the cluster."""
    before = wall_ms()
    answer = await admin._send_request(_Quorum())  # noqa: SLF001 - likewise
    after = wall_ms()
    if answer.error_code:
        raise for_code(answer.error_code)
    [(_, [partition], _)] = answer.topics
    _, code, leader, _, _, voters, *_ = partition
    if code:
        raise for_code(code)
    for replica, _, fetched, *_ in voters:
        if replica == leader and fetched > 0:
            return ClockReading(before, after, fetched)
    raise KafkaError("the controller doesn't return its time")


def _operations(bits: int) -> frozenset[str] | None:
    if bits == _NOT_ASKED:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)


def _member(metadata: bytes | None) -> Member:
    try:
        return member_of(ConsumerProtocolMemberMetadata.decode(metadata or b"").user_data)
    except ValueError:
        return Member(None, None)  # The group is rebalancing, or another program has joined it.
