"""What an answer of an S3-speaking store means to the lock: `TABLE`, which the code goes through from the top.

The documentation's `store-answers.md` is written from it (`python -m lakewarden.agent.stores.classify`), and
`tests/contract/test_s3_answers.py` has a server give every answer in it.

*Unknown* and *refused* differ in who acts next: after *unknown* the lock reads back and goes on by itself; after
*refused*, which is said only where nothing was written, somebody has to change something. In doubt it is *unknown*,
never *lost*: a lock that believes it lost while its own write landed would wait for itself.

Of a wrong ETag only what is certain is judged. One that repeats the version written over is a write that did not
happen, since no two writes of a lock are equal. That an ETag isn't the body's MD5 says nothing: neither is that of an
encrypted object (SSE-KMS, SSE-C), which looks the same. Nor does it have to be judged: a write under a wrong ETag
loses, and what a loss means is read back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from lakewarden.agent.stores.port import shorten
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
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

_MESSAGE_CHARACTERS: Final = 150
"""Of what the store says; the reason before it, and the status and the code after it, must still fit."""

_THROTTLES: Final = ("SlowDown", "Throttl", "RequestLimitExceeded", "TooManyRequests", "RequestThrottled")
"""Beginnings of codes: MinIO says SlowDownRead and SlowDownWrite, others Throttling and ThrottlingException."""

_NO_OBJECT: Final = ("", "NoSuchKey", "BlobNotFound", "PathNotFound")
"""What S3, Google and Azure call it, some stand-ins for them nothing at all. Any other 404 is about the bucket."""

_DAMAGED: Final = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
"""A 400 about the way the request came, and not about what it asks."""

_VERSION: Final = re.compile(r'"[^"\s]+"|[^"\s,*]+')
"""What can follow `If-Match:` and name one version: `*` matches every one, and a comma makes a list of two."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, or why nothing did, reduced to what decides."""

    status: int = 0
    code: str = ""
    message: str = ""
    version: str | None = None
    """The ETag as it came."""
    body: bytes = b""
    """Of a read."""
    unasked_bytes: int = 0
    """Length of the body that came with the answer to a write."""
    encoding: str = ""
    """`Content-Encoding`: the body is not the object's bytes."""
    fault: Literal["unsent", "silence", "stranger", "too long"] | None = None

    @property
    def said(self) -> str:
        """The answer in one line: facts for a log, never the whole page."""
        if not self.status:
            return shorten(self.message)
        said = shorten(self.message)[:_MESSAGE_CHARACTERS] or "no message"
        return f"{said}: status={self.status} code={self.code or '-'}"


Asked: TypeAlias = Condition | None
"""The condition of a write; None for a read."""

Meaning = Literal["won", "lost", "found", "absent", "throttled", "unknown", "refused"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of answer; None where the kind can't be an answer to that request."""

    answer: str
    applies: Callable[[Answer, Asked], bool]
    means: tuple[Meaning | None, Meaning | None, Meaning | None]
    """To a write if-absent, to a write if-match, to a read."""
    why: str

    def meaning(self, asked: Asked) -> Meaning:
        """What it means to who asked so."""
        if_absent, if_match, read = self.means
        match asked:
            case IfAbsent():
                meaning = if_absent
            case IfMatch():
                meaning = if_match
            case None:
                meaning = read
            case _:
                assert_never(asked)
        assert meaning is not None, f"{self.answer!r} can't answer {asked!r}"
        return meaning


def _done(answer: Answer) -> bool:
    return answer.status in {200, 201}


TABLE: Final = (
    Row(
        "nothing was sent, nor will be: no credentials, no region, an untrusted certificate",
        lambda answer, _: answer.fault == "unsent",
        ("refused", "refused", "refused"),
        "nothing was sent",
    ),
    Row(
        "none, or no whole one: no connection, reset before or after the body was sent, timeout, cut short",
        lambda answer, _: answer.fault == "silence",
        ("unknown", "unknown", "unknown"),
        "no whole answer came",
    ),
    Row(
        "404 that is no error of S3: a page of a proxy, or nothing",
        lambda answer, _: answer.fault == "stranger",
        ("unknown", "unknown", "unknown"),
        "something before the store answered",
    ),
    Row(
        "an object longer than 1 MiB",
        lambda answer, _: answer.fault == "too long",
        (None, None, "refused"),
        "that is no lock object",
    ),
    Row(
        "412; code PreconditionFailed under any status",
        lambda answer, _: answer.status == 412 or answer.code == "PreconditionFailed",
        ("lost", "lost", "unknown"),
        "the condition did not hold",
    ),
    Row(
        "429; code SlowDown, Throttling, … under any status",
        lambda answer, _: answer.status == 429 or answer.code.startswith(_THROTTLES),
        ("throttled", "throttled", "throttled"),
        "the store asks for patience",
    ),
    Row(
        "200, 201 with any other error in the body",
        lambda answer, _: _done(answer) and answer.code != "",
        ("unknown", "unknown", "unknown"),
        "success and an error in one",
    ),
    Row(
        "200, 201 with a body, to a write",
        lambda answer, _: _done(answer) and answer.unasked_bytes > 0,
        ("unknown", "unknown", None),
        "a store answers a write without a body, so something else may have answered",
    ),
    Row(
        "200 with a compressed body, to a read",
        lambda answer, _: _done(answer) and answer.encoding not in {"", "identity", "aws-chunked"},
        (None, None, "refused"),
        "nobody asked for a compressed body; keep proxies from compressing",
    ),
    Row(
        "200, 201 with a weak ETag",
        lambda answer, _: _done(answer) and (answer.version or "").startswith("W/"),
        ("unknown", "unknown", "refused"),
        "a weak etag is no version to write over; keep proxies from rewriting it",
    ),
    Row(
        "200, 201 without an ETag, or with one that names no version: empty, *, a list",
        lambda answer, _: _done(answer) and not _VERSION.fullmatch(answer.version or ""),
        ("unknown", "unknown", "unknown"),
        "the answer has no etag",
    ),
    Row(
        "200, 201 with the ETag that was to be written over",
        lambda answer, asked: (
            _done(answer) and isinstance(asked, IfMatch) and _bare(asked.version) == _bare(answer.version)
        ),
        (None, "unknown", None),
        "the version is the one from before, so nothing was written",
    ),
    Row(
        "200, 201 with an ETag",
        lambda answer, _: _done(answer),
        ("won", "won", "found"),
        "the store did it",
    ),
    Row(
        "304",
        lambda answer, _: answer.status == 304,
        ("unknown", "unknown", "unknown"),
        "nobody asked whether it was modified, so a cache may have answered",
    ),
    Row(
        "404 for the object: code NoSuchKey, BlobNotFound",
        lambda answer, _: answer.status == 404 and answer.code in _NO_OBJECT,
        ("refused", "lost", "absent"),
        "no object is there",
    ),
    Row(
        "408; 400 with code RequestTimeout, IncompleteBody, BadDigest",
        lambda answer, _: answer.status == 408 or answer.code in _DAMAGED,
        ("unknown", "unknown", "unknown"),
        "the request did not come through whole",
    ),
    Row(
        "409",
        lambda answer, _: answer.status == 409,
        ("unknown", "unknown", "unknown"),
        "two writes met, and either may have landed",
    ),
    Row(
        "301, 302, 307, …; 400, 403, 404 for the bucket, every other 4xx; 501",
        lambda answer, _: 300 <= answer.status < 500 or answer.status == 501,
        ("refused", "refused", "refused"),
        "the store refuses",
    ),
    Row(
        "500, 502, 503, every other 5xx",
        lambda answer, _: 500 <= answer.status < 600,
        ("unknown", "unknown", "unknown"),
        "the store may have acted",
    ),
    Row(
        "anything else",
        lambda *_: True,
        ("unknown", "unknown", "unknown"),
        "no answer that a store gives",
    ),
)


def row_of(answer: Answer, asked: Asked) -> Row:
    """The first row that applies; the last one always does."""
    return next(row for row in TABLE if row.applies(answer, asked))


def classify_write(answer: Answer, condition: Condition) -> WriteOutcome:
    """What a store's answer to a conditional write tells the lock."""
    row = row_of(answer, condition)
    match row.meaning(condition):
        case "won":
            assert answer.version is not None
            return Won(answer.version)
        case "lost":
            return Lost(_why(row, answer))
        case "throttled":
            return Throttled(_why(row, answer))
        case "unknown":
            return Unknown(_why(row, answer))
        case "refused":
            return Refused(_why(row, answer))
        case "found" | "absent" as meaning:
            raise AssertionError(f"a write can't be {meaning}: {row.answer}")
        case never:
            assert_never(never)


def classify_read(answer: Answer) -> ReadOutcome:
    """What a store's answer to an unconditional read tells the lock."""
    row = row_of(answer, None)
    match row.meaning(None):
        case "found":
            assert answer.version is not None
            return Found(answer.body, answer.version)
        case "absent":
            return Absent()
        case "throttled":
            return Throttled(_why(row, answer))
        case "unknown":
            return Unknown(_why(row, answer))
        case "refused":
            return Refused(_why(row, answer))
        case "won" | "lost" as meaning:
            raise AssertionError(f"a read can't be {meaning}: {row.answer}")
        case never:
            assert_never(never)


def _bare(version: str | None) -> str:
    """An ETag without its quotes: some stores take and give it without."""
    return (version or "").strip('"')


def _why(row: Row, answer: Answer) -> str:
    return shorten(f"{row.why}: {answer.said}")


def render() -> str:
    """The page of the documentation."""
    rows = "\n".join(
        f"| {row.answer} | {' | '.join(meaning or '–' for meaning in row.means)} | {row.why} |"
        for row in TABLE
    )
    return f"""# What S3's answers mean

Written by `python -m lakewarden.agent.stores.classify` from its table; don't edit.

The first row that applies counts. A write is *won*, *lost* (the condition did not hold), *throttled*, *unknown* (it may have
landed: the lock reads back) or *refused* (nothing was written, and somebody has to change something). Every request is sent
once: no redirect is followed, nothing is sent again.

| answer | write if-absent | write if-match | read | why |
| --- | --- | --- | --- | --- |
{rows}
"""


if __name__ == "__main__":
    sys.stdout.write(render())
