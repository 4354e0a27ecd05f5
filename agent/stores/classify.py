"""Which answer of an S3-speaking store means what. The one table; pure, so a test goes through it row by row.

| answer | write | read | why |
| --- | --- | --- | --- |
| error code PreconditionFailed, whatever the status | lost | unknown | S3 has sent it with status 200 |
| 200, 201 with an ETag | won | found | |
| 200, 201 without an ETag | unknown | unknown | without a version nothing can be renewed |
| other 2xx | unknown | unknown | not an answer S3 gives |
| 412 | lost | unknown | |
| 409 | unknown | unknown | two writes met; either may have landed. Never lost |
| 404 NoSuchBucket | refused | refused | somebody has to create it |
| other 404, if-match | lost | absent | the object is gone |
| other 404, if-absent | refused | - | nothing that a PUT of a new key answers |
| 429; code SlowDown, Throttling, … | throttled | throttled | said before the store acted |
| 501 | refused | refused | the store does not implement what we ask |
| other 5xx | unknown | unknown | the store may have acted |
| 400 RequestTimeout, 408 | unknown | unknown | the store stopped waiting; it may have acted |
| 3xx, 400, 403, other 4xx | refused | refused | no retry mends it |

Unknown and refused differ in who acts next: after *unknown* the lock reads back and goes on; after *refused*
somebody has to change something. In doubt it is *unknown*, never *lost*: a lock that believes it lost while
its own write landed would wait for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, assert_never

from lakewarden.agent.stores.port import shorten
from lakewarden.handlers.conditional import (
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

_PRECONDITION: Final = "PreconditionFailed"
_NO_BUCKET: Final = "NoSuchBucket"
_THROTTLES: Final = ("SlowDown", "Throttl", "RequestLimitExceeded", "TooManyRequests", "RequestThrottled")
"""Beginnings of codes: MinIO says SlowDownRead and SlowDownWrite, others Throttling and ThrottlingException."""

_MESSAGE_CHARACTERS: Final = 200
"""Of what the store says; the status and the code after it must still fit."""

_Meaning = Literal["taken", "failed condition", "missing", "throttled", "unknown", "refused"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, reduced to what decides: status, error code and message, and the ETag."""

    status: int
    code: str = ""
    message: str = ""
    version: str | None = None
    body: bytes = b""

    @property
    def why(self) -> str:
        """The answer in one line: facts for a log, never the whole page."""
        said = shorten(self.message)[:_MESSAGE_CHARACTERS] or "no message"
        return shorten(f"{said}: status={self.status} code={self.code or '-'}")


def classify_write(answer: Answer, condition: Condition) -> WriteOutcome:
    """What a store's answer to a conditional write tells the lock."""
    meaning = _meaning(answer)
    match meaning:
        case "taken":
            return Won(answer.version) if answer.version else Unknown(f"the answer has no etag: {answer.why}")
        case "failed condition":
            return Lost(answer.why)
        case "missing":
            match condition:
                case IfMatch():
                    return Lost(answer.why)
                case IfAbsent():
                    return Refused(
                        f"not found, for an object to be created; check the endpoint: {answer.why}"
                    )
                case _:
                    assert_never(condition)
        case "throttled":
            return Throttled(answer.why)
        case "unknown":
            return Unknown(answer.why)
        case "refused":
            return Refused(answer.why)
        case _:
            assert_never(meaning)


def classify_read(answer: Answer) -> ReadOutcome:
    """What a store's answer to an unconditional read tells the lock."""
    meaning = _meaning(answer)
    match meaning:
        case "taken":
            if not answer.version:
                return Unknown(f"the answer has no etag: {answer.why}")
            return Found(answer.body, answer.version)
        case "missing":
            return Absent()
        case "throttled":
            return Throttled(answer.why)
        case "failed condition" | "unknown":
            return Unknown(answer.why)
        case "refused":
            return Refused(answer.why)
        case _:
            assert_never(meaning)


def _meaning(answer: Answer) -> _Meaning:
    """The table above. Codes come first: they are what a store means, the status is how it travelled."""
    status, code = answer.status, answer.code
    if code == _PRECONDITION or status == 412:
        return "failed condition"
    if status == 429 or code.startswith(_THROTTLES):
        return "throttled"
    if status in {200, 201} and not code:
        return "taken"
    if status == 404:
        return "refused" if code == _NO_BUCKET else "missing"
    if code == "RequestTimeout" or status in {408, 409}:
        return "unknown"
    if status == 501 or 300 <= status < 500:
        return "refused"
    return "unknown"
