"""Connections to Google and Azure that break, hang or are given up: unknown, and never sent again."""

from __future__ import annotations

import anyio
import obstore
import pytest

from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfMatch,
    Unknown,
    Won,
)
from tests.contract.clouds import ABSENT, BROKEN, Cloud, Real, error
from tests.servers.fault_proxy import fault_proxy
from tests.servers.faulty_http import Reply, faulty_server

pytestmark = pytest.mark.usefixtures("cloud_credentials")


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("connection", ["new", "pooled"])
async def test_a_write_without_an_answer_is_unknown_and_never_sent_again(
    cloud: Cloud, fault: str, connection: str
) -> None:
    """The store acted and the answer was lost: sent again, the write would meet itself and report 412."""
    broken = Reply(fault=fault)  # type: ignore[arg-type]
    script = [broken, error(412)] if connection == "new" else [cloud.done(), broken, error(412)]
    async with faulty_server(script) as server, cloud.store(server, seconds=1.0) as store:
        if connection == "pooled":
            assert isinstance(await store.write(cloud.uri, b"first", ABSENT), Won)
        sent_before = len(server.received)
        outcome = await store.write(cloud.uri, b"body", IfMatch(cloud.before))

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == sent_before + 1


@pytest.mark.parametrize("fault", [*BROKEN, "cut", "hang"])
async def test_a_read_without_a_whole_answer_is_unknown(cloud: Cloud, fault: str) -> None:
    async with (
        faulty_server([cloud.done(body=b"half", fault=fault), cloud.done()]) as server,
        cloud.store(server, seconds=0.5) as store,
    ):
        outcome = await store.read(cloud.uri)

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == 1


async def test_an_error_cut_short_is_unknown(cloud: Cloud) -> None:
    """Half a code is no code: of a 404 it would say nothing about which of the two is missing."""
    reply = Reply(404, (), b"<Error><Code>NoSu", fault="cut")
    async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)
    async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.read(cloud.uri), Unknown)


async def test_nobody_listening_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([cloud.done()]) as server:
        gone = server
    async with cloud.store(gone, seconds=2.0) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)


async def test_a_write_given_up_in_time_is_unknown_and_was_sent_whole(cloud: Cloud) -> None:
    """It is in the store's hands: nobody can call it back."""
    async with faulty_server([Reply(fault="silence")]) as server, cloud.store(server, seconds=0.3) as store:
        outcome = await store.write(cloud.uri, b"body", ABSENT)

    assert isinstance(outcome, Unknown)
    assert [received.body for received in server.received] == [b"body"]


async def test_cancellation_passes_through_a_request(cloud: Cloud) -> None:
    async with faulty_server([Reply(fault="silence")]) as server, cloud.store(server) as store:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.write, cloud.uri, b"body", ABSENT)
                while not server.received:
                    await anyio.sleep(0.01)
                scope.cancel()

    assert scope.cancelled_caught


async def test_what_is_cancelled_before_it_begins_is_never_sent(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore's calls send at once, before anybody awaits them."""
    called: list[str] = []
    monkeypatch.setattr(obstore, "put_async", lambda _, key, *__, **___: called.append(key))
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write(cloud.uri, b"body", ABSENT)

    assert scope.cancelled_caught
    assert called == []


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_a_write_given_up_may_land_later_but_never_against_its_condition(real: Real) -> None:
    """Of ten that are kept back, half arrive when everybody has given up; half of the keys were written meanwhile."""
    keys = [f"{real.uri}/{number}.json" for number in range(10)]
    async with (
        fault_proxy(real.server, seed=1, request_timeout_seconds=0.2) as proxy,
        real.open(proxy.endpoint, 0.2) as slow,
        real.open() as store,
    ):
        with proxy.hanging():
            given_up = [await slow.write(key, b"late", ABSENT) for key in keys]
            before = [await store.read(key) for key in keys]
            meanwhile = [await store.write(key, b"meanwhile", ABSENT) for key in keys[::2]]
        landed = set[bytes]()
        while not landed:
            found = [await store.read(key) for key in keys[1::2]]
            landed = {each.body for each in found if isinstance(each, Found)}
        kept = [await store.read(key) for key in keys[::2]]

    assert all(isinstance(outcome, Unknown) for outcome in given_up), given_up
    assert before == [Absent()] * 10
    assert landed == {b"late"}
    assert kept == [Found(b"meanwhile", won.version) for won in meanwhile if isinstance(won, Won)]


async def test_a_call_that_never_ends_is_given_up(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore bounds each of its requests, but not the several that one call may make for credentials."""

    async def never(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(obstore, "put_async", never)
    monkeypatch.setattr(obstore, "get_async", never)
    async with CloudStore(cloud.uri, request_timeout_seconds=0.1) as store:
        for outcome in (await store.write(cloud.uri, b"x", ABSENT), await store.read(cloud.uri)):
            assert isinstance(outcome, Unknown)
            assert "credentials or an answer did not come in time" in outcome.why
