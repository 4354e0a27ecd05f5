"""The table of `classify.py`, row by row: what an S3 answer means to a write and to a read."""

from __future__ import annotations

import pytest

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.handlers.conditional import (
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

ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
ABSENT = IfAbsent()
MATCH = IfMatch(ETAG)

# status, code, if-absent write, if-match write, read
ROWS: list[tuple[int, str, type, type, type]] = [
    (200, "", Won, Won, Found),
    (201, "", Won, Won, Found),
    (200, "PreconditionFailed", Lost, Lost, Unknown),
    (500, "PreconditionFailed", Lost, Lost, Unknown),  # how botocore delivers the row above
    (200, "InternalError", Unknown, Unknown, Unknown),
    (202, "", Unknown, Unknown, Unknown),
    (204, "", Unknown, Unknown, Unknown),
    (206, "", Unknown, Unknown, Unknown),
    (0, "", Unknown, Unknown, Unknown),
    (301, "PermanentRedirect", Refused, Refused, Refused),
    (307, "TemporaryRedirect", Refused, Refused, Refused),
    (400, "BadRequest", Refused, Refused, Refused),
    (400, "ExpiredToken", Refused, Refused, Refused),
    (400, "RequestTimeout", Unknown, Unknown, Unknown),
    (401, "", Refused, Refused, Refused),
    (403, "AccessDenied", Refused, Refused, Refused),
    (403, "RequestTimeTooSkewed", Refused, Refused, Refused),
    (404, "NoSuchBucket", Refused, Refused, Refused),
    (404, "NoSuchKey", Refused, Lost, Absent),
    (404, "", Refused, Lost, Absent),
    (405, "MethodNotAllowed", Refused, Refused, Refused),
    (408, "", Unknown, Unknown, Unknown),
    (409, "ConditionalRequestConflict", Unknown, Unknown, Unknown),
    (409, "OperationAborted", Unknown, Unknown, Unknown),
    (412, "PreconditionFailed", Lost, Lost, Unknown),
    (412, "", Lost, Lost, Unknown),
    (429, "", Throttled, Throttled, Throttled),
    (429, "TooManyRequests", Throttled, Throttled, Throttled),
    (400, "ThrottlingException", Throttled, Throttled, Throttled),
    (500, "InternalError", Unknown, Unknown, Unknown),
    (501, "NotImplemented", Refused, Refused, Refused),
    (502, "", Unknown, Unknown, Unknown),
    (503, "SlowDown", Throttled, Throttled, Throttled),
    (503, "SlowDownWrite", Throttled, Throttled, Throttled),
    (503, "ServiceUnavailable", Unknown, Unknown, Unknown),
    (503, "", Unknown, Unknown, Unknown),
    (504, "", Unknown, Unknown, Unknown),
]


@pytest.mark.parametrize("status, code, if_absent, if_match, read", ROWS)
def test_every_answer_means_one_thing(
    status: int, code: str, if_absent: type, if_match: type, read: type
) -> None:
    answer = Answer(status, code, "what the store says", version=ETAG, body=b"body")

    assert type(classify_write(answer, ABSENT)) is if_absent
    assert type(classify_write(answer, MATCH)) is if_match
    assert type(classify_read(answer)) is read


@pytest.mark.parametrize("condition", [ABSENT, MATCH])
@pytest.mark.parametrize("version", [None, ""])
def test_a_success_without_an_etag_is_unknown(version: str | None, condition: Condition) -> None:
    """Without a version the lock could neither be renewed nor released: it has to be read back first."""
    assert isinstance(classify_write(Answer(200, version=version), condition), Unknown)
    assert isinstance(classify_read(Answer(200, version=version)), Unknown)


def test_a_conflict_is_never_a_loss() -> None:
    """409 means that two writes met. A lock that took it for a loss would wait for its own lease to lapse."""
    for status in range(100, 600):
        for condition in (ABSENT, MATCH):
            outcome = classify_write(Answer(status, version=ETAG), condition)
            assert isinstance(outcome, Lost) == (status == 412 or (status == 404 and condition == MATCH)), (
                status
            )


def test_only_success_wins() -> None:
    won = {
        status
        for status in range(600)
        if isinstance(classify_write(Answer(status, version=ETAG), ABSENT), Won)
    }

    assert won == {200, 201}


def test_won_and_found_carry_the_etag_as_it_came() -> None:
    assert classify_write(Answer(200, version=ETAG), ABSENT) == Won(ETAG)
    assert classify_read(Answer(200, version=ETAG, body=b"x")) == Found(b"x", ETAG)


def test_the_reason_is_one_short_line_with_the_facts() -> None:
    """A proxy's error page is kilobytes of html; the reason goes into events."""
    outcome = classify_write(Answer(403, "AccessDenied", "<html>\n" * 1000), ABSENT)

    assert isinstance(outcome, Refused)
    assert len(outcome.why) <= 300
    assert "\n" not in outcome.why
    assert "status=403 code=AccessDenied" in outcome.why
