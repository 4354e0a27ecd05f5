"""Requests that return what a user may do (KIP-430): aiokafka has them in older versions, or reads their answers without it."""

from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from lakewarden.agent.serving.assignor import member_of
from lakewarden.handlers.setup import Member, TopicFacts

_OPERATIONS = {3: "read", 4: "write", 5: "create", 8: "describe", 10: "describe-configs", 11: "alter-configs"}
"""Kafka's codes of operations; the answer's bit of the same number says whether the user may."""
_NOT_ASKED = -(2**31)
_TEXT = String("utf-8")


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


class _GroupsStruct(DescribeGroupsRequest_v3):  # type: ignore[misc] # likewise
    RESPONSE_TYPE = DescribeGroupsResponse_v3  # aiokafka names version 2


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
    decoded = [_subscription(metadata) for *_, metadata, _ in members]
    return GroupFacts(
        _operations(operations),
        tuple(Member(None, None) if each is None else member_of(each.user_data) for each in decoded),
    )


def _operations(bits: int) -> frozenset[str] | None:
    if bits == _NOT_ASKED:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)


def _subscription(metadata: bytes | None) -> Any:
    """None: the group is rebalancing, or another program has joined it."""
    try:
        return ConsumerProtocolMemberMetadata.decode(metadata or b"")
    except ValueError:
        return None
