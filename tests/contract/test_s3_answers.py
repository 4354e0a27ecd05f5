"""Each row of the table in `store_answers.py`: a server sends the answer over a real connection and counts the requests.

The outcomes are repeated here, so that an accidental change of a row fails a test.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, NamedTuple

import anyio
import pytest
import pytest_asyncio
from hypothesis import given, settings, strategies as st

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.agent.watching.files import AbsentFileError, Buckets, UnreadableTableError
from lakewarden.handlers.lease import store_answers
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.store_answers import MAX_WHY_CHARACTERS, TABLE, Answer, RequestCondition, Row
from tests.own_task import in_own_task
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server

URI = "s3://bucket/locks/t.json"
BEFORE = '"0cc175b9c0f1b6a831c399e269772661"'
ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
HTML = b"<html><body><h1>Bad gateway</h1><hr></body>"
QUOTED = b"<html><body><Error><Code>NoSuchKey</Code></Error><Code>NoSuchKey</Code></body></html>"
"""A proxy's page that quotes the error of a store behind it."""
ENDLESS = ("silence", "hang", "drip", "drip-head")
"""Faults that only the client's timeout ends."""

DONE = Reply(200, (("ETag", ETAG),))
READ = Reply(200, (("ETag", ETAG),), b'{"expired":true}')


def error(status: int, code: str, *headers: tuple[str, str]) -> Reply:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>a text</Message></Error>'
    )
    return Reply(status, headers, body.encode())


def google_json(reason: str, message: str = "a text") -> bytes:
    """An error of Google's JSON API, laid out as it lays it out."""
    described = {"message": message, "domain": "global", "reason": reason}
    return json.dumps({"error": {"code": 0, "message": message, "errors": [described]}}, indent=2).encode()


NO_OBJECT_JSON = google_json("notFound", "No such object: bucket/locks/t.json")
ERROR_INFO = b'{"error": {"code": 403, "status": "RESOURCE_EXHAUSTED", "details": [{"reason": "RATE_LIMIT_EXCEEDED"}]}}'
NO_BUCKET_JSON = google_json("notFound", "The specified bucket does not exist.")
BEHIND_A_BOM = replace(error(404, "NoSuchKey"), body="\ufeff".encode() + error(404, "NoSuchKey").body)
"""As Azure sends its error documents."""


def tagged(*etags: str) -> Reply:
    """A 200 without a body, with these ETags."""
    return Reply(200, tuple(("ETag", etag) for etag in etags))


def with_header(name: str, value: str) -> Reply:
    return replace(READ, headers=(*READ.headers, (name, value)))


class Example(NamedTuple):
    """An answer, its row, and the outcome of a write if-absent, a write if-match and a read."""

    row: str
    answer: str
    reply: Reply
    if_absent: type | None
    if_match: type | None
    read: type | None


NO_SERVICE = "request not sent: the service of the credentials fails (Google, Azure)"
UNSENT = "request not sent: no credentials, no region, an untrusted certificate"
BROKEN = "no complete answer: no connection, a reset before or after the body was sent, a timeout, a truncated body"
PAGE = "404 that is not an S3 error: a proxy's page, or an empty body"
LONG = "an object longer than 1 MiB"
FORBIDDEN = "409, 412 with a code that is no conflict: BlobImmutableDueToPolicy, LeaseIdMissing, ContainerBeingDeleted, …"
CONDITION = "412; code PreconditionFailed, BlobAlreadyExists under any status"
PATIENCE = "429; code SlowDown, Throttling, … under any status"
ERROR_200 = "200, 201 with any other error in the body"
BODY_200 = "200, 201 with a body, to a write"
COMPRESSED = "200 with a compressed body, to a read"
WEAK = "200, 201 with a weak ETag"
NO_VERSION = "200, 201 without an ETag, or with one that names no single version: empty, *, a list"
SAME = "200, 201 with the ETag that If-Match named"
TAKEN = "200, 201 with an ETag"
NOT_MODIFIED = "304"
NO_OBJECT = "404 for the object: code NoSuchKey, BlobNotFound"
DAMAGED = "408, 499; 400 with code RequestTimeout, IncompleteBody, BadDigest"
CONFLICT = "409; code OperationAborted, ConditionalRequestConflict under any status"
REFUSES = "301, 302, 307, …; 400 ExpiredToken, InvalidRequest, …; 401; 403; 404 for the bucket; every other 4xx; 501"
TROUBLE = "500, 502, 503, every other 5xx but 501; code InternalError, OperationTimedOut, ServiceUnavailable under any status"
ELSE = "anything else"

ELSEWHERE = ("Location", "/bucket/locks/elsewhere.json")
HALF_ERROR = b"<Error><Code>NoSu"
REGION = ("x-amz-bucket-region", "eu-west-1")
WRONG_REGION = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"

CODES_OF_A_REFUSAL: Final = {
    400: (
        "ExpiredToken",
        "InvalidToken",
        "InvalidRequest",
        "InvalidArgument",
        "InvalidDigest",
        "MissingSecurityHeader",
        "AuthorizationHeaderMalformed",
        "KMS.DisabledException",
        "KMS.KMSInvalidStateException",
        "InvalidResourceName",
        "UserProjectMissing",
        "CloudKmsDisabledKey",
        "XMinioAdminBucketQuotaExceeded",
    ),
    401: ("AuthenticationRequired", "InvalidAuthenticationInfo"),
    403: (
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "RetentionPolicyNotMet",
        "AuthenticationFailed",
        "AuthorizationPermissionMismatch",
        "AccountIsDisabled",
        "AccountProblem",
        "AllAccessDisabled",
        "InvalidObjectState",
        "QuotaExceeded",
        "ObjectUnderActiveHold",
        "UserProjectAccountProblem",
    ),
    404: ("NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "ResourceNotFound"),
    405: ("MethodNotAllowed",),
    409: (
        "AccountBeingCreated",
        "BlobArchived",
        "BlobBeingRehydrated",
        "BlobImmutableDueToPolicy",
        "BlobTierNotSupported",
        "ContainerBeingDeleted",
        "ContainerDisabled",
        "FeatureVersionMismatch",
        "FileImmutable",
        "InvalidBlobType",
        "InvalidBucketState",
        "InvalidObjectState",
        "KMS.KMSInvalidStateException",
        "LeaseIdMismatchWithContainerOperation",
        "LeaseIdMissing",
        "OperationNotAllowedOnIncrementalCopyBlob",
        "PendingCopyOperation",
        "ResourceTypeMismatch",
        "RestoreAlreadyInProgress",
        "SystemInUse",
    ),
    411: ("MissingContentLength",),
    412: (
        "BlobImmutableDueToPolicy",
        "InvalidBucketState",
        "LeaseIdMismatchWithBlobOperation",
        "LeaseIdMissing",
        "LeaseLost",
        "LeaseNotPresentWithBlobOperation",
        "OrgPolicyConstraintFailed",
    ),
}
"""Of S3, Google, Azure and others. The store has read the request and did nothing."""
UNKNOWN: Final = (Unknown, Unknown, Unknown)
UNKNOWN_TO_WRITES: Final = (Unknown, Unknown, None)
UNKNOWN_TO_A_READ: Final = (None, None, Unknown)
REFUSED: Final = (Refused, Refused, Refused)
REFUSED_TO_A_READ: Final = (None, None, Refused)
THROTTLED: Final = (Throttled, Throttled, Throttled)
LOST: Final = (Lost, Lost, Unknown)
TAKEN_SO: Final = (Won, Won, Found)

EXAMPLES: Final = [
    Example(BROKEN, "reset before the body was read", Reply(fault="reset-unread"), *UNKNOWN),
    Example(BROKEN, "reset after the body was read", Reply(fault="reset"), *UNKNOWN),
    Example(BROKEN, "closed after the body was read", Reply(fault="close"), *UNKNOWN),
    Example(BROKEN, "silence", Reply(fault="silence"), *UNKNOWN),
    Example(BROKEN, "half the headers", replace(DONE, fault="half-head"), *UNKNOWN),
    Example(BROKEN, "headers without end", replace(DONE, fault="drip-head"), *UNKNOWN),
    Example(BROKEN, "a body without end", replace(DONE, fault="drip"), *UNKNOWN),
    Example(BROKEN, "a body that stops", replace(READ, fault="hang"), *UNKNOWN),
    Example(BROKEN, "cut short", replace(READ, fault="cut"), *UNKNOWN),
    Example(BROKEN, "chunks cut short", replace(READ, fault="cut", framing="chunked"), *UNKNOWN),
    Example(BROKEN, "an error cut short", Reply(404, (), HALF_ERROR, fault="cut"), *UNKNOWN),
    Example(BROKEN, "two ETags", tagged(ETAG, BEFORE), *UNKNOWN),
    Example(BROKEN, "no length", replace(READ, framing="until closed"), *UNKNOWN_TO_A_READ),
    Example(BODY_200, "half an error", replace(DONE, body=b"<Error><Code>Precon"), *UNKNOWN_TO_WRITES),
    Example(BROKEN, "an invalid date", with_header("Last-Modified", "once"), *UNKNOWN_TO_A_READ),
    Example(PAGE, "404 with a page", Reply(404, body=HTML), *UNKNOWN),
    Example(PAGE, "404 with nothing", Reply(404), *UNKNOWN),
    Example(PAGE, "404 with a page that quotes an error", Reply(404, body=QUOTED), *UNKNOWN),
    Example(PAGE, "404 with a text that quotes an error", Reply(404, body=b"gone: " + QUOTED), *UNKNOWN),
    Example(PAGE, "404 with json", Reply(404, body=b'{"detail":"Not Found"}'), *UNKNOWN),
    Example(
        LONG, "1 MiB and one byte", replace(READ, body=b"x" * (MAX_OBJECT_BYTES + 1)), *REFUSED_TO_A_READ
    ),
    Example(CONDITION, "412", error(412, "PreconditionFailed"), *LOST),
    *(
        Example(CONDITION, f"{status} {code}", error(status, code), *LOST)
        for status, code in (
            (412, "ConditionNotMet"),
            (412, "TargetConditionNotMet"),
            (409, "BlobAlreadyExists"),
            (409, "PathAlreadyExists"),
            (409, "FileAlreadyExists"),
        )
    ),
    Example(CONDITION, "412 of Google's JSON", Reply(412, body=google_json("conditionNotMet")), *LOST),
    Example(CONDITION, "412 with a page", Reply(412, body=HTML), *LOST),
    Example(CONDITION, "412 with nothing", Reply(412), *LOST),
    Example(
        CONDITION, "200 with a failed condition", error(200, "PreconditionFailed", ("ETag", ETAG)), *LOST
    ),
    Example(PATIENCE, "429", Reply(429), *THROTTLED),
    Example(PATIENCE, "429 with a code", error(429, "TooManyRequests"), *THROTTLED),
    *(
        Example(PATIENCE, f"403 {reason}", Reply(403, body=google_json(reason)), *THROTTLED)
        for reason in (
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "RequestRateLimitExceeded",
            "usageLimits.rateLimitExceeded",
        )
    ),
    Example(PATIENCE, "403 of Google's newer APIs", Reply(403, body=ERROR_INFO), *THROTTLED),
    Example(PATIENCE, "503 SlowDown", error(503, "SlowDown"), *THROTTLED),
    Example(PATIENCE, "503 of MinIO", error(503, "SlowDownWrite"), *THROTTLED),
    *(
        Example(PATIENCE, f"{status} {code}", error(status, code), *THROTTLED)
        for status, code in (
            (400, "ThrottlingException"),
            (400, "KMS.ThrottlingException"),
            (400, "RequestLimitExceeded"),
            (503, "BandwidthLimitExceeded"),
            (503, "ServerBusy"),
            (409, "SnapshotOperationRateExceeded"),
        )
    ),
    Example(PATIENCE, "200 SlowDown", error(200, "SlowDown", ("ETag", ETAG)), *THROTTLED),
    Example(ERROR_200, "200 InternalError", error(200, "InternalError", ("ETag", ETAG)), *UNKNOWN),
    Example(ERROR_200, "200 NoSuchKey", error(200, "NoSuchKey"), *UNKNOWN),
    Example(BODY_200, "a login page", replace(DONE, body=b"<html>Log in</html>"), *UNKNOWN_TO_WRITES),
    Example(BODY_200, "some words", replace(DONE, body=b"OK"), *UNKNOWN_TO_WRITES),
    Example(COMPRESSED, "gzip", with_header("Content-Encoding", "gzip"), *REFUSED_TO_A_READ),
    Example(WEAK, "weak", tagged(f"W/{ETAG}"), Unknown, Unknown, Refused),
    Example(NO_VERSION, "no ETag", Reply(200), *UNKNOWN),
    Example(NO_VERSION, "empty", tagged(""), *UNKNOWN),
    Example(NO_VERSION, "empty in quotes", tagged('""'), *UNKNOWN),
    Example(NO_VERSION, "a star", tagged("*"), *UNKNOWN),
    Example(NO_VERSION, "a list", tagged(f"{ETAG}, {BEFORE}"), *UNKNOWN),
    Example(SAME, "the overwritten version", tagged(BEFORE), None, Unknown, None),
    Example(SAME, "the same without quotes", tagged(BEFORE.strip('"')), None, Unknown, None),
    Example(TAKEN, "200", DONE, *TAKEN_SO),
    Example(TAKEN, "201", Reply(201, (("ETag", ETAG),)), *TAKEN_SO),
    Example(TAKEN, "200 in chunks", replace(DONE, framing="chunked"), *TAKEN_SO),
    Example(TAKEN, "without quotes", tagged(ETAG.strip('"')), *TAKEN_SO),
    Example(TAKEN, "the same ETag twice", tagged(ETAG, ETAG), *TAKEN_SO),
    Example(TAKEN, "not the body's MD5", tagged('"0123456789abcdef0123456789abcdef"'), *TAKEN_SO),
    Example(NOT_MODIFIED, "304", Reply(304, (("ETag", ETAG),)), *UNKNOWN),
    Example(NO_OBJECT, "404 NoSuchKey", error(404, "NoSuchKey"), Refused, Lost, Absent),
    Example(NO_OBJECT, "404 of Google's JSON", Reply(404, body=NO_OBJECT_JSON), Refused, Lost, Absent),
    Example(NO_OBJECT, "404 behind a BOM", BEHIND_A_BOM, Refused, Lost, Absent),
    *(
        Example(row, f"{status} {code} {start}", Reply(status, body=body.encode()), *outcomes)
        for row, status, code, *outcomes in (
            (NO_OBJECT, 404, "NoSuchKey", Refused, Lost, Absent),
            (REFUSES, 404, "NoSuchBucket", *REFUSED),
            (PATIENCE, 503, "SlowDown", *THROTTLED),
            (FORBIDDEN, 412, "InvalidBucketState", *REFUSED),
        )
        for start, body in (
            ("in a namespace", f'<Error xmlns="http://s3"><Code>{code}</Code></Error>'),
            ("with a prefix", f'<s3:Error xmlns:s3="http://s3"><s3:Code>{code}</s3:Code></s3:Error>'),
        )
    ),
    Example(PAGE, "404 in a namespace, without a code", Reply(404, body=b'<Error xmlns="s"/>'), *UNKNOWN),
    Example(DAMAGED, "408", Reply(408), *UNKNOWN),
    Example(DAMAGED, "499", Reply(499), *UNKNOWN),
    Example(DAMAGED, "400 RequestTimeout", error(400, "RequestTimeout"), *UNKNOWN),
    Example(DAMAGED, "400 IncompleteBody", error(400, "IncompleteBody"), *UNKNOWN),
    Example(DAMAGED, "400 BadDigest", error(400, "BadDigest"), *UNKNOWN),
    Example(CONFLICT, "409", error(409, "ConditionalRequestConflict"), *UNKNOWN),
    Example(CONFLICT, "409 OperationAborted", error(409, "OperationAborted"), *UNKNOWN),
    Example(CONFLICT, "a conflict with another status", error(400, "OperationAborted"), *UNKNOWN),
    Example(
        FORBIDDEN,
        "412 of Google's JSON for a policy",
        Reply(412, body=google_json("orgPolicyConstraintFailed")),
        *REFUSED,
    ),
    Example(CONFLICT, "409 with nothing", Reply(409), *UNKNOWN),
    Example(REFUSES, "301 of S3", error(301, "PermanentRedirect", REGION), *REFUSED),
    Example(REFUSES, "301 elsewhere", Reply(301, (ELSEWHERE,)), *REFUSED),
    Example(REFUSES, "302 to a login", Reply(302, (ELSEWHERE,), HTML), *REFUSED),
    Example(REFUSES, "303", Reply(303, (ELSEWHERE,)), *REFUSED),
    Example(REFUSES, "307 of S3", error(307, "TemporaryRedirect", ELSEWHERE), *REFUSED),
    Example(REFUSES, "308", Reply(308, (ELSEWHERE,)), *REFUSED),
    *(
        Example(
            FORBIDDEN if status in {409, 412} else REFUSES, f"{status} {code}", error(status, code), *REFUSED
        )
        for status, codes in CODES_OF_A_REFUSAL.items()
        for code in codes
    ),
    Example(REFUSES, "404 of Google's JSON for a bucket", Reply(404, body=NO_BUCKET_JSON), *REFUSED),
    Example(REFUSES, "403 of Google's JSON", Reply(403, body=google_json("forbidden")), *REFUSED),
    Example(REFUSES, "403 with a page that quotes an error", Reply(403, body=QUOTED), *REFUSED),
    Example(REFUSES, "400 with nothing", Reply(400), *REFUSED),
    Example(REFUSES, "another region", Reply(400, body=WRONG_REGION), *REFUSED),
    Example(REFUSES, "401", Reply(401), *REFUSED),
    Example(REFUSES, "403 with a page", Reply(403, body=HTML), *REFUSED),
    Example(REFUSES, "418", Reply(418, body=b"not xml at all"), *REFUSED),
    Example(REFUSES, "501", error(501, "NotImplemented"), *REFUSED),
    Example(TROUBLE, "500", error(500, "InternalError"), *UNKNOWN),
    Example(TROUBLE, "trouble with another status", error(400, "InternalError"), *UNKNOWN),
    Example(TROUBLE, "500 with nothing", Reply(500), *UNKNOWN),
    Example(TROUBLE, "502", Reply(502, body=HTML), *UNKNOWN),
    Example(TROUBLE, "503", error(503, "ServiceUnavailable"), *UNKNOWN),
    Example(TROUBLE, "503 with a page", Reply(503, body=HTML), *UNKNOWN),
    Example(TROUBLE, "504", Reply(504), *UNKNOWN),
    Example(ELSE, "202", Reply(202, (("ETag", ETAG),)), *UNKNOWN),
    Example(ELSE, "204", Reply(204, (("ETag", ETAG),)), *UNKNOWN),
    Example(ELSE, "206", Reply(206, (("ETag", ETAG),)), *UNKNOWN),
    Example(ELSE, "600", Reply(600), *UNKNOWN),
]

CONDITIONS: Final[dict[str, RequestCondition]] = {
    "if-absent": IfAbsent(),
    "if-match": IfMatch(BEFORE),
    "read": None,
}

CASES = [
    pytest.param(example, condition, expected, id=f"{example.answer} - {name}")
    for example in EXAMPLES
    for (name, condition), expected in zip(CONDITIONS.items(), example[3:], strict=True)
    if expected is not None
]


class AnsweringServer:
    """A server, and two clients with a long and a short timeout."""

    def __init__(self, server: FaultyServer, patient: S3Store, impatient: S3Store) -> None:
        self.server = server
        self.patient = patient
        self.impatient = impatient

    async def outcome(self, reply: Reply, condition: RequestCondition) -> WriteOutcome | ReadOutcome:
        """Send one request, and check that it reached the server once.

        The script's second reply is a success: a client that resends would return that one. A busy machine may need longer
        for sending than the short timeout; then nothing was tested, and the request is repeated.
        """
        received_before, calls = len(self.server.received), 0
        self.server.script[:] = (
            [reply] if reply.fault in ENDLESS else [reply, READ if condition is None else DONE]
        )
        while True:
            calls += 1
            outcome = await self._call(reply, condition)
            received = len(self.server.received) - received_before
            assert received <= calls
            if received > 0:
                return outcome

    async def _call(self, reply: Reply, condition: RequestCondition) -> WriteOutcome | ReadOutcome:
        store = self.impatient if reply.fault in ENDLESS else self.patient
        if condition is None:
            return await store.read(URI)
        return await store.write(URI, b'{"expired":false}', condition)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answering() -> AsyncGenerator[AnsweringServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_PROFILE", raising=False)
        async with in_own_task(faulty_server([DONE])) as server:
            options = S3Options(endpoint_url=server.endpoint)
            async with (
                S3Store(options, request_timeout_seconds=60) as patient,
                S3Store(options, request_timeout_seconds=0.4) as impatient,
            ):
                while not isinstance(await impatient.write(URI, b"", IfAbsent()), Won):
                    await anyio.sleep(0.1)
                yield AnsweringServer(server, patient, impatient)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The rows that were applied."""
    applied: list[Row] = []

    def recorded(answer: Answer, condition: RequestCondition) -> Row:
        applied.append(row := row_of(answer, condition))
        return row

    row_of = store_answers.row_of
    monkeypatch.setattr(store_answers, "row_of", recorded)
    return applied


@pytest.mark.parametrize("example, condition, expected", CASES)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_means_one_thing_and_the_request_is_sent_once(
    example: Example, condition: RequestCondition, expected: type, answering: AnsweringServer, rows: list[Row]
) -> None:
    outcome = await answering.outcome(example.reply, condition)

    assert type(outcome) is expected, outcome
    assert {row.answer for row in rows} == {example.row}


def test_every_row_of_the_table_has_an_example() -> None:
    """The rows in which nothing is sent are tested in `test_s3_connection.py` and `test_cloud_connection.py`."""
    exercised = {
        (example.row, name)
        for example in EXAMPLES
        for name, expected in zip(CONDITIONS, example[3:], strict=True)
        if expected is not None
    }
    possible = {
        (row.answer, name)
        for row in TABLE
        for name, meaning in zip(CONDITIONS, row.means, strict=True)
        if meaning is not None and row.answer not in {UNSENT, NO_SERVICE}
    }

    assert exercised == possible


HEADER = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30
)
HEADERS = st.tuples(
    st.sampled_from(
        [
            "ETag",
            "Last-Modified",
            "Expires",
            "Content-Type",
            "Content-Encoding",
            "Content-Range",
            "x-amz-meta-a",
            "x-amz-missing-meta",
            "x-amz-bucket-region",
            "x-amz-delete-marker",
            "x-amz-object-size",
            "x-amz-mp-parts-count",
            "Location",
        ]
    ),
    HEADER,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            HTML,
            b"<Error/>",
            b"<Error><Code/><Message/></Error>",
            b"<Error><Code>A</Code><Code>B</Code></Error>",
        ]
    ),
)


REPLIES = st.builds(
    Reply,
    status=st.integers(200, 999),
    headers=st.lists(HEADERS, max_size=4).map(tuple),
    body=BODIES,
    framing=st.sampled_from(["length", "chunked", "until closed"]),
)


@given(reply=REPLIES, condition=st.sampled_from(list(CONDITIONS.values())))
@settings(max_examples=300, deadline=None)
@pytest.mark.asyncio(loop_scope="module")
async def test_any_answer_becomes_an_outcome_and_never_an_exception(
    reply: Reply, condition: RequestCondition, answering: AnsweringServer
) -> None:
    """A write wins, and a read finds an object, only with a 200 or 201 and an ETag."""
    outcome = await answering.outcome(reply, condition)

    assert isinstance(outcome, Won | Lost | Found | Absent | Throttled | Unknown | Refused)
    if isinstance(outcome, Won | Found):
        assert reply.status in {200, 201}
        assert outcome.version in {value.strip() for name, value in reply.headers if name == "ETag"}


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_have_the_headers_that_a_policy_may_demand(answering: AnsweringServer) -> None:
    """Of encryption, of a requester that pays, and of the account that a bucket must belong to. A watcher reads and pays."""
    encrypted = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "alias/locks",
    }
    async with faulty_server([DONE, READ, Reply(204), error(404, "NoSuchKey")]) as server:
        settings = Settings(
            s3_endpoint=server.endpoint,
            s3_encryption="aws:kms=alias/locks",
            s3_requester_pays=True,
            s3_bucket_owner="1" * 12,
        )
        async with S3Store(S3Options.of(settings), request_timeout_seconds=60) as store:
            assert isinstance(await store.write(URI, b"{}", IfAbsent()), Won)
            assert isinstance(await store.read(URI), Found)
            await store.delete("s3://bucket/.lakewarden-probe/1")
        with pytest.raises(AbsentFileError):
            await Buckets(settings).table("s3://bucket/t").read("log")

    sent = [{name.lower(): value for name, value in each.headers.items()} for each in server.received]
    assert [each.method for each in server.received] == ["PUT", "GET", "DELETE", "GET"]
    assert [headers.get("x-amz-request-payer") for headers in sent] == ["requester"] * 4
    assert [headers.get("x-amz-expected-bucket-owner") for headers in sent] == ["1" * 12] * 3 + [None]
    assert [encrypted.items() <= headers.items() for headers in sent] == [True, False, False, False]


@pytest.mark.parametrize(
    "reply, is_absent",
    [(error(404, "NoSuchKey"), True), (error(404, "NoSuchBucket"), False), (Reply(404, body=HTML), False)],
    ids=["object", "bucket", "proxy"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_watcher_distinguishes_a_missing_file_from_a_missing_bucket(
    reply: Reply, is_absent: bool, answering: AnsweringServer
) -> None:
    async with faulty_server([reply]) as server:
        files = Buckets(Settings(s3_endpoint=server.endpoint)).table("s3://bucket/t")
        with pytest.raises(UnreadableTableError) as raised:
            await files.read("log")

    assert isinstance(raised.value, AbsentFileError) == is_absent


@pytest.mark.asyncio(loop_scope="module")
async def test_a_refusal_has_the_beginning_and_the_end_of_the_stores_text(answering: AnsweringServer) -> None:
    """The end says which policy has refused."""
    refusal = (
        "User: arn:aws:sts::123456789012:assumed-role/lakewarden-agent/i-0123456789abcdef0 is not authorized to perform: "
        f"s3:PutObject on resource: &quot;arn:aws:s3:::bucket/{'warehouse/' * 60}t.json&quot; with an explicit deny in a "
        "resource-based policy"
    )
    body = f"<Error><Code>AccessDenied</Code><Message>{refusal}</Message></Error>"

    outcome = await answering.outcome(Reply(403, (), body.encode()), IfAbsent())

    assert isinstance(outcome, Refused)
    assert "User: arn:aws:sts::123456789012:assumed-role/lakewarden-agent" in outcome.why
    assert "explicit deny in a resource-based policy: status=403" in outcome.why
    assert len(outcome.why) <= MAX_WHY_CHARACTERS
