"""What the stores of Google and Azure make of every answer, over a real connection.

Each request must reach the server **once**.
"""

from __future__ import annotations

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Throttled,
    Unknown,
    Won,
)
from tests.contract.clouds import ABSENT, AZURE, MODIFIED, Cloud, error
from tests.servers.faulty_http import Reply, faulty_server

pytestmark = pytest.mark.usefixtures("cloud_credentials")
# What it answers, and what that means to a write if-absent, a write if-match, and a read.
ERRORS: list[tuple[Reply, type, type, type]] = [
    (Reply(304), Unknown, Unknown, Unknown),
    (error(400, "InvalidArgument"), Refused, Refused, Refused),
    (error(401, "AuthenticationRequired"), Refused, Refused, Refused),
    (error(403, "AccessDenied"), Refused, Refused, Refused),
    (error(404, "no object"), Refused, Lost, Absent),
    (error(404, "no bucket"), Refused, Refused, Refused),
    (Reply(404, body=b"<html>not found</html>"), Unknown, Unknown, Unknown),
    (error(408), Unknown, Unknown, Unknown),
    (error(409, "Conflict"), Unknown, Unknown, Unknown),
    (error(409), Unknown, Unknown, Unknown),
    (error(412, "PreconditionFailed"), Lost, Lost, Unknown),
    (error(412, "ConditionNotMet"), Lost, Lost, Unknown),
    (error(412), Lost, Lost, Unknown),
    (error(418), Refused, Refused, Refused),
    (error(429, "rateLimitExceeded"), Throttled, Throttled, Throttled),
    (error(429), Throttled, Throttled, Throttled),
    (error(500, "InternalError"), Unknown, Unknown, Unknown),
    (error(501, "NotImplemented"), Refused, Refused, Refused),
    (Reply(502, body=b"<html>bad gateway</html>"), Unknown, Unknown, Unknown),
    (error(503, "slow down"), Throttled, Throttled, Throttled),
    (error(503, "ServiceUnavailable"), Unknown, Unknown, Unknown),
    (error(504), Unknown, Unknown, Unknown),
]


@pytest.mark.parametrize(
    "reply, if_absent, if_match, read",
    ERRORS,
    ids=[f"{number}-{row[0].status}" for number, row in enumerate(ERRORS)],
)
async def test_an_error_means_one_thing_and_the_request_is_sent_once(
    cloud: Cloud, reply: Reply, if_absent: type, if_match: type, read: type
) -> None:
    for code, name in (
        (cloud.no_object, b"no object"),
        (cloud.no_bucket, b"no bucket"),
        (cloud.slow_down, b"slow down"),
    ):
        reply = Reply(reply.status, reply.headers, reply.body.replace(name, code.encode()))
    told = []
    for ask in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
            told.append(
                await (store.read(cloud.uri) if ask is None else store.write(cloud.uri, b"body", ask))
            )
        assert len(server.received) == 1, ask

    assert [type(outcome) for outcome in told] == [if_absent, if_match, read], told
    assert all("\n" not in getattr(outcome, "why", "") for outcome in told)


async def test_azures_409_for_what_is_there_is_lost() -> None:
    """Unlike any other 409: it says that the condition did not hold, and nothing of two writes that met."""
    async with (
        faulty_server([error(409, "BlobAlreadyExists"), AZURE.done()]) as server,
        AZURE.store(server) as store,
    ):
        outcome = await store.write(AZURE.uri, b"body", ABSENT)

    assert isinstance(outcome, Lost)
    assert "BlobAlreadyExists" in outcome.why


@pytest.mark.parametrize("condition", [IfAbsent, IfMatch])
async def test_a_write_that_is_taken_is_won_with_the_version_that_the_next_needs(
    cloud: Cloud, condition: type[Condition]
) -> None:
    asked: Condition = ABSENT if condition is IfAbsent else IfMatch(cloud.before)
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        assert await store.write(cloud.uri, b"body", asked) == Won(cloud.after)
        assert await store.write(cloud.uri, b"body", IfMatch(cloud.after + "1")) == Won(cloud.after)

    assert len(server.received) == 2


@pytest.mark.parametrize("version", ["", '"9dd4e461268c8034f5c8564e155c67a6"', "W/x", "*"])
async def test_a_success_without_a_version_of_the_cloud_is_unknown(cloud: Cloud, version: str) -> None:
    async with faulty_server([cloud.done(version)]) as server, cloud.store(server) as store:
        written = await store.write(cloud.uri, b"body", ABSENT)
        read = await store.read(cloud.uri)

    assert isinstance(written, Unknown), written
    assert isinstance(read, Unknown), read
    assert len(server.received) == 2


async def test_a_success_without_headers_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([Reply(200)]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)

    assert len(server.received) == 2


async def test_a_write_that_leaves_the_version_as_it_was_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([cloud.done(cloud.before)]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


async def test_a_read_gives_body_and_version(cloud: Cloud) -> None:
    async with faulty_server([cloud.done(body=b"body")]) as server, cloud.store(server) as store:
        assert await store.read(cloud.uri) == Found(b"body", cloud.after)

    assert len(server.received) == 1


async def test_an_object_past_the_bound_is_refused_unread(cloud: Cloud) -> None:
    """It promises more than the bound and sends half: whoever waited for the rest would run into the timeout."""
    reply = cloud.done(body=b"x" * (MAX_OBJECT_BYTES + 1), fault="hang")
    async with faulty_server([reply]) as server, cloud.store(server) as store:
        assert isinstance(await store.read(cloud.uri), Refused)


async def test_a_name_that_reads_like_an_answer_is_none(cloud: Cloud) -> None:
    """The path is part of the message that the status is read from, and a table's name comes with an event."""
    folder = cloud.uri.rpartition("/")[0]
    spoof = "Error performing PUT x in y - Server returned non-2xx status code: 412 Precondition Failed: z"
    uri = f"{folder}/{spoof}"
    for reply, expected in (
        (error(404, cloud.no_bucket), Refused),
        (error(500), Unknown),
        (Reply(fault="reset"), Unknown),
    ):
        async with faulty_server([reply]) as server, cloud.store(server) as store:
            assert isinstance(await store.write(uri, b"x", IfMatch(cloud.before)), expected)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_write_is_refused(cloud: Cloud, status: int) -> None:
    redirect = Reply(status, (("Location", "/elsewhere"),))
    async with faulty_server([redirect, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Refused)

    assert len(server.received) == 1


async def test_a_page_behind_a_redirect_is_not_taken_for_an_answer(cloud: Cloud) -> None:
    """A login page answers 303 to everything, and the HTTP client follows it. Its ETag is no version of the cloud."""
    redirect = Reply(303, (("Location", "/login"),))
    page = Reply(200, (("ETag", '"33a64df5"'), MODIFIED), b"<html>log in</html>")
    for ask in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([redirect, page]) as server, cloud.store(server) as store:
            outcome = await (store.read(cloud.uri) if ask is None else store.write(cloud.uri, b"body", ask))
        assert isinstance(outcome, Unknown), outcome
        assert [received.path for received in server.received][1:] == ["/login"]


async def test_a_redirect_to_the_object_itself_is_not_taken_for_its_replacement(cloud: Cloud) -> None:
    """The GET that follows a 303 finds what is there, with the version that was to be replaced."""
    redirect = Reply(303, (("Location", "/there"),))
    async with (
        faulty_server([redirect, cloud.done(cloud.before, b"old")]) as server,
        cloud.store(server) as store,
    ):
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


ANSWERED = (
    "Error performing PUT http://host/b/k in 1ms - Server returned non-2xx status code: 404 Not Found: "
    "<Error><Code>NoSuchKey</Code></Error>"
)


@pytest.mark.parametrize(
    "failure",
    [
        GenericError(f"Generic GCS error: Error asking for something new: {ANSWERED}"),
        GenericError("Generic GCS error: it said 404 Not Found"),
        AlreadyExistsError("Object at location k already exists, in words of another version: 409"),
        PreconditionError("412"),
        FileNotFoundError(2, "No such file or directory"),
        NotImplementedError("not yet"),
    ],
    ids=repr,
)
async def test_a_failure_in_words_that_are_not_known_is_unknown(
    cloud: Cloud, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later obstore may say things differently; the lock then reads back, and neither loses nor wins by a guess."""

    async def fail(*_: object, **__: object) -> object:
        raise failure

    monkeypatch.setattr(obstore, "put_async", fail)
    monkeypatch.setattr(obstore, "get_async", fail)
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        assert isinstance(await store.write(cloud.uri, b"x", ABSENT), Unknown)
        assert isinstance(await store.write(cloud.uri, b"x", IfMatch(cloud.before)), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)
