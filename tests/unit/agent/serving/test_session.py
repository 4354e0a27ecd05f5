"""An orderly stop: all steps together end within `shutdown_seconds`, whatever Kafka and the stores do.

The clock is a variable: each part takes as long as it is allowed to.
"""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.serving import session as session_module
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.session import RESTORE_SECONDS, KafkaSession
from lakewarden.agent.settings import Settings
from tests.tuned import tuned
from tests.unit.agent.serving.owner_in_memory import consumed

ROOT = Path(__file__).resolve().parents[4]


def a_session(shutdown_seconds: float = 10.0) -> Any:
    """A session without partitions."""
    stores: Any = None
    return KafkaSession(Lasting(tuned(tables=("s3://lake/*",), shutdown_seconds=shutdown_seconds)), stores)


class Stop:
    """The end of a session with three clients. Kafka answers nothing, and each part uses its whole time limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shutdown_seconds: float, recording: float) -> None:
        self.now = 100.0
        self.given: list[float] = []
        self.session = a_session(shutdown_seconds)
        self.session._clients = [object(), object(), object()]
        self.recording = recording
        monkeypatch.setattr(session_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(session_module, "stop_client", self.stop_client)
        monkeypatch.setattr(self.session, "_restore_ledgers", self.restore_ledgers)
        monkeypatch.setattr(self.session, "_release_partitions", self.release_partitions)

    async def restore_ledgers(self, seconds: float) -> float:
        """Ask what the ledgers have, and record them again."""
        self.take(seconds)
        self.now += self.recording
        return self.recording

    async def release_partitions(self, numbers: list[int], seconds: float) -> None:
        assert numbers == []
        self.take(seconds)

    async def stop_client(self, client: object, seconds: float) -> None:
        """A client may take `seconds` for its own stop, and again to close its connections."""
        assert client in self.session._clients
        self.take(2 * seconds)

    def take(self, seconds: float) -> None:
        assert seconds > 0
        self.given.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("shutdown_seconds", [1.0, 10.0, 60.0])
async def test_all_steps_of_a_stop_together_end_in_time(
    shutdown_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop(monkeypatch, shutdown_seconds, recording=0.0)

    await stop.session.close()

    assert len(stop.given) == 5, "the question about the ledger, the release, three clients"
    assert stop.now - 100.0 == pytest.approx(shutdown_seconds)


async def test_a_ledger_that_is_recorded_again_leaves_the_other_steps_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Stop(monkeypatch, 10.0, recording=RESTORE_SECONDS)

    await stop.session.close()

    assert stop.now - 100.0 == pytest.approx(10.0 + RESTORE_SECONDS)


@pytest.mark.parametrize(
    ("file", "option"),
    [
        ("deploy/helm/lakewarden/values.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("deploy/systemd/lakewarden-agent.service", r"TimeoutStopSec=(\d+)"),
        ("docker-compose.yml", r"stop_grace_period: (\d+)s"),
    ],
)
def test_an_agent_is_not_killed_before_its_orderly_stop_ends(file: str, option: str) -> None:
    [grace] = [int(each) for each in re.findall(option, (ROOT / file).read_text())]

    assert grace >= Settings(tables=("s3://lake/*",)).shutdown_seconds + RESTORE_SECONDS


async def test_the_question_about_the_ledger_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    session = a_session()

    async def never(owners: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(session, "_compare_ledgers", never)
    with anyio.fail_after(60):
        assert await session._restore_ledgers(0.01) == 0.0


# A rebalance while the agent asks where a topic begins: fetched records belong to the owner that the partition had then.

SETTINGS = Settings(tables=("s3://lake/*",))
TOPIC = SETTINGS.topics.writers


class Owner:
    """In place of a partition's owner: keeps the offsets that it consumes."""

    def __init__(self, number: int, phase: str = "live") -> None:
        self.number, self.phase, self.position = number, phase, 5
        self.consumed: list[int] = []

    def consume(self, records: list[ConsumerRecord], read_at: float) -> None:
        """Consume, unless released."""
        del read_at
        if self.phase != "released":
            self.consumed += [each.offset for each in records]

    def finish_replay(self, position: int) -> None:
        """Ends no replay."""


def record(number: int, offset: int) -> ConsumerRecord:
    return consumed(b"", offset, topic=TOPIC, partition=number)


async def test_records_that_were_fetched_before_a_rebalance_do_not_reach_the_next_owner() -> None:
    """It would start with them, and skip the events before them."""
    session = a_session()
    first, former, following = Owner(0), Owner(1), Owner(1, "loading")
    session._owners = {0: first, 1: former}

    class Consumer:
        async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            """Answer after partition 1 was revoked and assigned again."""
            former.phase = "released"
            session._owners[1] = following
            return dict.fromkeys(partitions, 0)

    session._consumer = Consumer()
    fetched = {
        TopicPartition(TOPIC, 0): [record(0, 7)],  # offsets 5 and 6 are a hole
        TopicPartition(TOPIC, 1): [record(1, 5), record(1, 6)],
    }

    await session._pass_to_owners(fetched, 0.0)

    assert first.consumed == [7]
    assert (former.consumed, following.consumed) == ([], [])
