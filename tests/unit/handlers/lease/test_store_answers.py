"""Properties of the whole table; `tests/contract/test_s3_answers.py` tests each row against a server."""

import itertools

import pytest

from lakewarden.handlers.lease.conditional import IfAbsent, IfMatch, Lost, Refused, Unknown, Won
from lakewarden.handlers.lease.store_answers import (
    MAX_WHY_CHARACTERS,
    TABLE,
    Answer,
    RequestCondition,
    Row,
    classify_write,
    row_of,
)

BEFORE = '"0cc175b9c0f1b6a831c399e269772661"'
ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
ABSENT = IfAbsent()
MATCH = IfMatch(BEFORE)
CODES = ("", "PreconditionFailed", "SlowDown", "NoSuchKey", "NoSuchBucket", "RequestTimeout", "Other")


@pytest.mark.parametrize("condition", [ABSENT, MATCH, None])
def test_every_status_and_code_has_a_meaning(condition: RequestCondition) -> None:
    """A row without a meaning for the request would raise."""
    for status, code in itertools.product(range(1000), CODES):
        row_of(Answer(status, code, version=ETAG), condition).meaning(condition)


def test_a_write_loses_only_by_its_condition() -> None:
    """409 means that two writes collided. A lock that treated it as a loss could wait for its own lease to expire."""
    for status in range(1000):
        if_absent = classify_write(Answer(status, version=ETAG), ABSENT)
        if_match = classify_write(Answer(status, version=ETAG), MATCH)
        assert isinstance(if_absent, Lost) == (status == 412), status
        assert isinstance(if_match, Lost) == (status in {404, 412}), status


def test_only_success_wins() -> None:
    won = {
        (status, code)
        for status, code in itertools.product(range(1000), CODES)
        if isinstance(classify_write(Answer(status, code, version=ETAG), ABSENT), Won)
    }

    assert won == {(200, ""), (201, "")}


def test_a_write_that_may_have_been_applied_is_never_refused() -> None:
    """After *refused* the lock does not read back."""
    for status in (*range(300), *range(500, 501), *range(502, 1000), 408, 409):
        for condition in (ABSENT, MATCH):
            assert not isinstance(classify_write(Answer(status, version=ETAG), condition), Refused), status


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.answer)
def test_the_reason_is_one_short_line_with_the_facts(row: Row) -> None:
    """A proxy's error page is kilobytes of HTML; the reason goes into events."""
    summary = Answer(403, "AccessDenied" * 3, "<html>\n" * 1000).summary

    assert "\n" not in summary
    assert len(f"{row.why}: {summary}") <= MAX_WHY_CHARACTERS
    assert summary.endswith("status=403 code=AccessDeniedAccessDeniedAccessDenied")


def test_the_reason_contains_the_rows_explanation_and_the_answer() -> None:
    outcome = classify_write(Answer(409, "OperationAborted", "try\nagain"), MATCH)

    assert outcome == Unknown(
        "two writes collided, and either may have been applied: try again: status=409 code=OperationAborted"
    )
