"""How a watcher publishes while Kafka refuses, or while its client has ended: it sends the same events with a new client."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from structlog.testing import capture_logs

from lakewarden.agent.cli import app, options
from lakewarden.agent.errors import KafkaRefusedError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import foreground
from lakewarden.agent.watching.foreground import publishing
from lakewarden.events import TransactionAbandoned, WriterEventUnion

SETTINGS = Settings(watch=("s3://lake/trips",))


def event(name: str) -> WriterEventUnion:
    return TransactionAbandoned(
        event_id=name, table="s3://lake/trips", transaction="t", writer="w", at=datetime.now(UTC), reason="-"
    )


def test_the_command_bounds_its_memory_before_it_reads_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(app, "limit_memory", lambda: called.append("limited"))
    monkeypatch.setattr(app, "configure_logging", lambda _: None)
    monkeypatch.setattr(options, "run", lambda _: called.append("runs"))

    app.watch(tables=["s3://lake/trips"])

    assert called == ["limited", "runs"]


class Client:
    """A producer that answers each record with `answer`."""

    def __init__(self, answer: Callable[[asyncio.Future[None]], None]) -> None:
        self.answer = answer
        self.sent: list[bytes] = []
        self.stopped = False

    async def send(self, _: str, *, key: bytes, value: bytes) -> asyncio.Future[None]:
        del key
        self.sent.append(value)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer(done)
        return done


def accept(done: asyncio.Future[None]) -> None:
    done.set_result(None)


def refuse(done: asyncio.Future[None]) -> None:
    done.set_exception(TopicAuthorizationFailedError("writers"))


def cancel(done: asyncio.Future[None]) -> None:
    """As aiokafka does when it is stopped."""
    done.cancel()


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the next connections return or raise."""

    def stop(client: Client) -> Any:
        client.stopped = True
        return asyncio.sleep(0)

    def set_next(*made: Client | Exception) -> None:
        left = iter(made)

        async def connect(_: Settings) -> Client:
            found = next(left)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(foreground, "_connect", connect)

    monkeypatch.setattr(foreground, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(foreground, "stop_client", stop)
    return set_next


@pytest.mark.parametrize("answer", [refuse, cancel])
async def test_events_that_are_not_accepted_are_sent_again_by_a_new_client(
    connects: Callable[..., None], answer: Callable[[asyncio.Future[None]], None]
) -> None:
    """Kafka would refuse all that follows a refused record of the same producer."""
    first, second = Client(answer), Client(accept)
    connects(first, second)
    with capture_logs() as logs:
        async with publishing(SETTINGS) as publish:
            await publish([event("a"), event("b")])

            assert (first.stopped, second.stopped) == (True, False)

    assert [each["event"] for each in logs] == ["watch.not-published"]
    assert first.sent == second.sent
    assert len(second.sent) == 2


async def test_events_of_several_tables_are_sent_again_by_one_client(connects: Callable[..., None]) -> None:
    first, second = Client(refuse), Client(accept)
    connects(first, second)
    async with publishing(SETTINGS) as publish:
        await asyncio.gather(publish([event("a")]), publish([event("b")]))

    assert sorted(first.sent) == sorted(second.sent)


async def test_a_refused_connection_is_tried_again(connects: Callable[..., None]) -> None:
    """The password is being rotated."""

    def closed(done: asyncio.Future[None]) -> None:
        done.set_exception(KafkaError("closed"))

    first, second = Client(closed), Client(accept)
    connects(first, KafkaRefusedError("wrong password"), second)
    with capture_logs() as logs:
        async with publishing(SETTINGS) as publish:
            await publish([event("a")])

    assert [each["event"] for each in logs] == [
        "watch.not-published",
        "watch.kafka-refused",
        "watch.not-published",
    ]
    assert len(second.sent) == 1
