"""What follows from each error class of aiokafka, in aiokafka's producer, in a writer, its executors and an agent.

aiokafka's own handler of a broker's answers runs here. The broker is a stand-in: an answer is a code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aiokafka.admin  # noqa: F401 - defines further errors, if any
import pytest
from aiokafka import errors
from aiokafka.producer.sender import SendProduceReqHandler
from aiokafka.structs import TopicPartition

from lakewarden.agent.errors import SESSION_ENDS, PublishFailedError
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.events import CommitIntent, Topics
from lakewarden.events.access.codes import NEWER, know_newer_codes
from lakewarden.spark_jobs.gate import channel as channel_module, executor as executor_module
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from tests.unit.events.building import made

REPEATED = """
    NoBrokersAvailable NodeNotReadyError KafkaProtocolError CorrelationIdError Cancelled TooManyInFlightRequests StaleMetadata
    MetadataEmptyBrokerList KafkaConnectionError UnknownTopicOrPartitionError LeaderNotAvailableError NotLeaderForPartitionError
    RequestTimedOutError GroupLoadInProgressError GroupCoordinatorNotAvailableError NotCoordinatorForGroupError
    NotEnoughReplicasError NotEnoughReplicasAfterAppendError NotControllerError KafkaStorageError
"""
"""aiokafka repeats the request. The broker keeps the record once, because the producer is idempotent."""
KEPT = "NoError DuplicateSequenceNumber"
"""The record is in the log."""
SENT_AGAIN = """
    OutOfOrderSequenceNumber UnknownProducerId InvalidProducerIdMapping InvalidProducerEpoch ProducerFenced ProducerClosed
    CorruptRecordException BrokerNotAvailableError ReplicaNotAvailableError StaleLeaderEpochCodeError ConcurrentTransactions
    UnknownError
"""
"""A writer sends it once more with a new producer. An agent begins a new session, with a new producer."""
NAMES_A_RIGHT = "TopicAuthorizationFailedError"
NAMES_A_SIZE = "MessageSizeTooLargeError"
RAISED = """
    KafkaError IllegalStateError IllegalArgumentError UnrecognizedBrokerVersion IncompatibleBrokerVersion CommitFailedError
    AuthenticationMethodNotSupported AuthenticationFailedError KafkaUnavailableError KafkaTimeoutError UnsupportedCodecError
    KafkaConfigurationError QuotaViolationError NoOffsetForPartitionError RecordTooLargeError BrokerResponseError
    OffsetOutOfRangeError InvalidFetchRequestError StaleControllerEpochError OffsetMetadataTooLargeError InvalidTopicError
    RecordListTooLargeError InvalidRequiredAcksError IllegalGenerationError InconsistentGroupProtocolError InvalidGroupIdError
    UnknownMemberIdError InvalidSessionTimeoutError RebalanceInProgressError InvalidCommitOffsetSizeError
    GroupAuthorizationFailedError ClusterAuthorizationFailedError InvalidTimestampError UnsupportedSaslMechanismError
    IllegalSaslStateError UnsupportedVersionError TopicAlreadyExistsError InvalidPartitionsError InvalidReplicationFactorError
    InvalidReplicationAssignmentError InvalidConfigurationError InvalidRequestError UnsupportedForMessageFormatError
    PolicyViolationError InvalidTxnState InvalidTransactionTimeout TransactionCoordinatorFenced
    TransactionalIdAuthorizationFailed SecurityDisabled OperationNotAttempted LogDirNotFound SaslAuthenticationFailed
    ReassignmentInProgress DelegationTokenAuthDisabled DelegationTokenNotFound DelegationTokenOwnerMismatch
    DelegationTokenRequestNotAllowed DelegationTokenAuthorizationFailed DelegationTokenExpired InvalidPrincipalType
    NonEmptyGroup GroupIdNotFound FetchSessionIdNotFound InvalidFetchSessionEpoch ListenerNotFound MemberIdRequired
"""
"""A writer raises `AgentUnreachable`, which names the error. An agent begins a new session."""

ROWS = {
    name: row
    for names, row in (
        (REPEATED, "repeated"),
        (KEPT, "kept"),
        (SENT_AGAIN, "sent again"),
        (NAMES_A_RIGHT, "raised, needs read and write on the topic writers"),
        (NAMES_A_SIZE, "raised, raise max.message.bytes of the topic"),
        (RAISED, "raised, check the brokers"),
    )
    for name in names.split()
} | {each.__name__: "repeated" if each.retriable else "sent again" for each in NEWER}

TABLE = "s3://lake/t"
EVENT = made(CommitIntent, table=TABLE, transaction="t-1")


def classes(base: type[errors.KafkaError] = errors.KafkaError) -> Iterator[type[errors.KafkaError]]:
    if base.__module__.startswith("aiokafka") or base in NEWER:
        yield base
    for each in base.__subclasses__():
        yield from classes(each)


know_newer_codes()
RAISABLE = [each for each in classes() if each is not errors.BrokerResponseError]
"""The base class has no code."""
FAILING = [each for each in RAISABLE if ROWS.get(each.__name__) not in ("kept", "repeated")]
UNREPEATED = [each for each in RAISABLE if each.retriable and issubclass(each, errors.BrokerResponseError)]
"""Answers to a request for a producer's id, which aiokafka doesn't repeat."""


def test_each_error_class_of_aiokafka_has_a_row() -> None:
    assert sorted(ROWS) == sorted({each.__name__ for each in classes()})


async def outcome(answer: type[errors.KafkaError]) -> tuple[str, BaseException | None]:
    """What aiokafka does with a record after this answer, or after this error in place of an answer."""
    partition = TopicPartition("writers", 0)
    found: list[tuple[str, BaseException | None]] = []

    async def send(*_: object) -> Any:
        if (code := getattr(answer, "errno", None)) is None:
            raise answer
        return SimpleNamespace(API_VERSION=7, topics=[("writers", [(0, code, 5, -1, 0)])])

    async def nothing() -> None: ...

    sender = SimpleNamespace(
        client=SimpleNamespace(send=send, force_metadata_update=lambda: None, _maybe_wait_metadata=nothing),
        _txn_manager=SimpleNamespace(transactional_id=None),
        _acks=-1,
        _request_timeout_ms=1000,
        _retry_backoff=0,
        _message_accumulator=SimpleNamespace(reenqueue=lambda _: found.append(("repeated", None))),
    )
    batch = SimpleNamespace(
        get_data_buffer=lambda: b"",
        done=lambda *_: found.append(("kept", None)),
        failure=lambda exception: found.append(("failed", exception)),
    )
    await SendProduceReqHandler(sender, {partition: batch}).do(0)
    (only,) = found
    return only


@pytest.mark.parametrize("answer", RAISABLE, ids=lambda each: each.__name__)
def test_aiokafka_repeats_and_keeps_what_the_table_says(answer: type[errors.KafkaError]) -> None:
    row = ROWS[answer.__name__]
    what, error = asyncio.run(outcome(answer))

    if row in ("repeated", "kept"):
        assert what == row
    else:
        assert what == "failed"
        assert ROWS[type(error).__name__] == row


class Producers:
    """Producers of a writer. The first so many fail with an error, when they are made, at a record, or at its answer."""

    def __init__(self, error: type[Exception], failing: int, at: str) -> None:
        self.error, self.failing, self.at = error, failing, at
        self.made = 0

    async def make(self, *_: object, **__: object) -> Any:
        self.made += 1
        if self.at == "making" and self.made <= self.failing:
            raise self.error
        return self

    async def stop(self) -> None: ...

    async def send(self, *_: object, **__: object) -> Any:
        fails = self.made <= self.failing
        if fails and self.at == "sending":
            raise self.error

        async def acknowledgement() -> Any:
            if fails:
                raise self.error
            return SimpleNamespace(offset=7)

        return acknowledgement()


@pytest.mark.parametrize("publishes", ["driver", "executor"])
@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize(
    "error, at",
    [
        *((error, at) for error in FAILING for at in ("sending", "answer")),
        *((error, "making") for error in UNREPEATED),
    ],
)
def test_a_writer_sends_an_event_once_more_or_raises_what_to_do(
    error: type[errors.KafkaError], failing: int, at: str, publishes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = Producers(error, failing, at)
    for module in (channel_module, executor_module):
        monkeypatch.setattr(module, "make_producer", producers.make)
    channel = Channel("kafka-1:9092", topics=Topics("p"))
    channel._partitions = 1
    executor = executor_module._ProducerThread("kafka-1:9092", None, "p.writers", 5)
    row, _, remedy = ROWS[error.__name__].partition(", ")
    row = "sent again" if at == "making" else row

    def publish() -> None:
        if publishes == "driver":
            channel.send(EVENT)
        else:
            executor.send(TABLE.encode(), b"", "")

    try:
        if row == "sent again" and failing == 1:
            publish()
        else:
            with pytest.raises(AgentUnreachable) as raised:
                publish()
            assert (remedy or "check the brokers") in str(raised.value)
            answered = issubclass(error, errors.BrokerResponseError)
            assert ("kafka is unreachable" in str(raised.value)) == (not answered)
            if answered and error.__name__ != NAMES_A_RIGHT:
                name = "newer than this client" if error is errors.UnknownError else error.__name__
                assert name in str(raised.value)
        assert producers.made == (2 if row == "sent again" else 1)
    finally:
        channel._thread.close()
        executor._thread.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("error", FAILING, ids=lambda each: each.__name__)
def test_an_agent_begins_a_new_session(error: type[Exception], at_once: bool) -> None:
    class Producer:
        async def send(self, *_: object, **__: object) -> Any:
            if at_once:
                raise error
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error())
            return failed

    async def publish() -> None:
        publisher = Publisher(Producer(), batch_bytes=1000)
        publisher.put(Outgoing("decisions", b"k", b"v"))
        await publisher.run()
        await publisher.watch()

    with pytest.raises(PublishFailedError, match=error.__name__):
        asyncio.run(publish())
    assert issubclass(PublishFailedError, SESSION_ENDS)
