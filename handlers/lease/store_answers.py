"""What the answer of a store means: `TABLE`, of which the first row that applies counts.

The lock, the watcher, and a sink's own requests (`PaimonSink`) use the table. `docs/store-answers.md` is generated from it
(`python -m tests.pages`). In `tests/contract/test_s3_answers.py` a server sends every answer of the table.

*Unknown* and *refused* differ in what the store did. After *unknown* it may have written. *Refused* is returned only where
nothing was written, and the store may accept a later request. *Unusable* is a refusal that no later request can change. In doubt
the outcome is *unknown*, never *lost*: a lock that believes it lost although its write was applied would wait for itself.

Only one wrong ETag can be recognised. An ETag equal to the overwritten version means that nothing was written, since no two
writes of a lock are equal. An ETag that differs from the body's MD5 proves nothing: the ETag of an encrypted object (SSE-KMS,
SSE-C) differs too. It need not be recognised: the next write under a wrong ETag loses, and the lock reads back.

obstore raises an exception for every status but 2xx, and the status and the code are only in its text (`obstore_answer`). They
count only if the text is about our own request, not about a request for credentials. Any other failure is *unknown*. If an
upgrade changes the texts, a caller reads back more often, but it never loses or wins wrongly.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

from lakewarden.handlers.lease import conditional

MAX_WHY_CHARACTERS: Final = 600
"""Limit for a reason, which goes into logs and events: a store's error page must not."""

_MESSAGE_CHARACTERS: Final = 400
"""Limit for the store's own message, so that the reason before it and the status and code after it still fit."""

_THROTTLES: Final = re.compile(
    r"slow_?down|throttl|toomanyrequests|serverbusy|throughputexceeded|(rate|request|bandwidth)_?(limit)?_?exceeded",
    re.IGNORECASE,
)
"""Parts of such codes: S3's SlowDown, MinIO's SlowDownWrite, KMS.ThrottlingException, Azure's ServerBusy, Google's
rateLimitExceeded, which comes with 403, too."""

_NO_OBJECT: Final = ("", "NoSuchKey", "BlobNotFound", "PathNotFound")
"""The codes of S3, Google and Azure for a missing object; some emulators send none. Any other 404 concerns the bucket."""

_DAMAGED: Final = (
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
    "CrcMismatch",
    "XAmzContentSHA256Mismatch",
)
"""Codes of a 400 that concern the transfer of the request, not its content."""

_CONDITION: Final = re.compile(
    r"precondition|conditionnotmet|(blob|path|file|object)alreadyexists", re.IGNORECASE
)
"""Parts of the codes for a condition that did not hold. Azure's BlobAlreadyExists comes with 409."""

_FORBIDDEN: Final = re.compile(
    r"^(Invalid|Lease|Container|KMS)|Immutable|Archived|Being|Disabled|Mismatch|NotSupported|NotAllowed|Policy|Quota|Restore|Pending|InUse"
)
"""Parts of the codes of a 409 that is no conflict: the object, its container, a key or the account forbids the request."""

_CONFLICTS: Final = ("OperationAborted", "ConditionalRequestConflict")
_TROUBLES: Final = ("InternalError", "OperationTimedOut", "ServiceUnavailable")

REJECTED_CREDENTIALS: Final = (
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "TokenRefreshRequired",
    "InvalidToken",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "AuthenticationFailed",
)
"""Codes of S3, STS, Glue and Azure."""

_STATUS_ERROR: Final = re.compile(
    r"(?P<before>.*)Error performing (?:GET|PUT|POST|DELETE|HEAD) \S+ in \S+ - "
    r"Server returned non-2xx status code: (?P<status>\d{3})[^:]*: (?P<body>.*)",
    re.DOTALL,
)
_GENERIC: Final = re.compile(r"Generic \w+ error: ")
_NO_CREDENTIALS: Final = re.compile(
    r"Generic \w+ error: .{0,40}(token re(quest|sponse)|federated token|token file|az account|azure cli)"
    r"|The operation lacked .{0,60} External \w+ credential provider"
)
_REQUEST: Final = re.compile(r"Error performing (GET|PUT|POST|DELETE|HEAD) (\S+) in ")
_UNSENDABLE: Final = "HTTP error: builder error"
_XML_ERROR: Final = re.compile(
    r"[\ufeff\s]*(?:<\?xml[^>]*>\s*)?<(?:\w+:)?Error(?:Response)?[\s>](?:.*?<(?:\w+:)?Code>\s*([^<\s]+)\s*</)?",
    re.DOTALL,
)
_JSON_ERROR: Final = re.compile(r'\s*{\s*"error":.*?"(?:reason|code)":\s*"([\w.]+)"', re.DOTALL)
_JSON_NO_OBJECT: Final = re.compile(r'"message":\s*"No such object')
"""Google's JSON has the reason `notFound` for a missing bucket, too."""
_MESSAGE: Final = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)

_VERSION: Final = re.compile(r'"[^"\s]+"|[^"\s,*]+')
"""An ETag that names one version in `If-Match`: `*` matches every version, and a comma separates two."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of a store's answer that decide its meaning, or the reason why there is none."""

    status: int = 0
    code: str = ""
    message: str = ""
    version: str | None = None
    """The ETag, unchanged."""
    body: bytes = b""
    """The object, for a read."""
    unexpected_bytes: int = 0
    """Length of a body in the answer to a write, which should have none."""
    kept_as: str | None = None
    """The id of the version that the write has added, in a bucket that keeps versions."""
    encoding: str = ""
    """`Content-Encoding`. If set, the body is not the object's bytes."""
    fault: Literal["not sent", "no credentials", "no answer", "not the store", "too long"] | None = None
    """Why there is no usable answer of the store. *Not the store*: something in front of it answered, such as a proxy."""

    @property
    def rejects_credentials(self) -> bool:
        """Whether other credentials may help: their files are read again for the next request."""
        return self.fault == "no credentials" or self.status == 401 or self.code in REJECTED_CREDENTIALS

    @property
    def summary(self) -> str:
        """The answer in one line, for logs and error messages; an error page is cut."""
        if not self.status:
            return shorten(self.message)
        message = shorten(self.message, _MESSAGE_CHARACTERS) or "no message"
        return f"{message}: status={self.status} code={self.code or '-'}"


RequestCondition: TypeAlias = conditional.Condition | None
"""The condition of a write; None for a read."""

_REQUESTS: Final = (conditional.IfAbsent, conditional.IfMatch, type(None))

Meaning = Literal["won", "lost", "found", "absent", "throttled", "unknown", "refused", "unusable"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of answer. A meaning is None where this answer can't follow that request."""

    answer: str
    applies: Callable[[Answer, RequestCondition], bool]
    means: tuple[Meaning | None, Meaning | None, Meaning | None]
    """For a write if-absent, a write if-match, and a read."""
    why: str
    """The reason that the outcome carries into logs and error messages."""

    def meaning(self, condition: RequestCondition) -> Meaning:
        meaning = self.means[_REQUESTS.index(type(condition))]
        assert meaning is not None, f"{self.answer!r} can't follow a request with {condition!r}"
        return meaning


def _succeeded(answer: Answer) -> bool:
    return answer.status in {200, 201}


def _forbids(answer: Answer) -> bool:
    """Whether a 409 or a 412 is about something else than the condition of the request, or another write."""
    if answer.status == 412:
        return answer.code != "" and _CONDITION.search(answer.code) is None
    return answer.status == 409 and _FORBIDDEN.search(answer.code) is not None


TABLE: Final = (
    Row(
        "request not sent: no credentials, no region, an untrusted certificate",
        lambda answer, _: answer.fault == "not sent",
        ("refused", "refused", "refused"),
        "the request was not sent",
    ),
    Row(
        "request not sent: the service of the credentials fails (Google, Azure)",
        lambda answer, _: answer.fault == "no credentials",
        ("unknown", "unknown", "unknown"),
        "the request was not sent, and the next one may be",
    ),
    Row(
        "no complete answer: no connection, a reset before or after the body was sent, a timeout, a truncated body",
        lambda answer, _: answer.fault == "no answer",
        ("unknown", "unknown", "unknown"),
        "no complete answer arrived",
    ),
    Row(
        "404 that is not an S3 error: a proxy's page, or an empty body",
        lambda answer, _: answer.fault == "not the store",
        ("unknown", "unknown", "unknown"),
        "a proxy in front of the store may have answered",
    ),
    Row(
        "an object longer than 1 MiB",
        lambda answer, _: answer.fault == "too long",
        (None, None, "unusable"),
        "this is not a lock object",
    ),
    Row(
        "409, 412 with a code that is no conflict: BlobImmutableDueToPolicy, LeaseIdMissing, ContainerBeingDeleted, …",
        lambda answer, _: _forbids(answer),
        ("refused", "refused", "refused"),
        "the object, its container or a policy forbids the request",
    ),
    Row(
        "412; code PreconditionFailed, BlobAlreadyExists under any status",
        lambda answer, _: answer.status == 412 or _CONDITION.search(answer.code) is not None,
        ("lost", "lost", "unknown"),
        "the condition did not hold",
    ),
    Row(
        "429; code SlowDown, Throttling, … under any status",
        lambda answer, _: answer.status == 429 or _THROTTLES.search(answer.code) is not None,
        ("throttled", "throttled", "throttled"),
        "the store throttles requests",
    ),
    Row(
        "200, 201 with any other error in the body",
        lambda answer, _: _succeeded(answer) and answer.code != "",
        ("unknown", "unknown", "unknown"),
        "the answer reports both success and an error",
    ),
    Row(
        "200, 201 with a body, to a write",
        lambda answer, _: _succeeded(answer) and answer.unexpected_bytes > 0,
        ("unknown", "unknown", None),
        "stores answer a write without a body, so a proxy may have answered",
    ),
    Row(
        "200 with a compressed body, to a read",
        lambda answer, _: _succeeded(answer) and answer.encoding not in {"", "identity", "aws-chunked"},
        (None, None, "refused"),
        "the body is compressed, which was not requested; configure proxies not to compress",
    ),
    Row(
        "200, 201 with a weak ETag",
        lambda answer, _: _succeeded(answer) and (answer.version or "").startswith("W/"),
        ("unknown", "unknown", "refused"),
        "If-Match can't name a weak ETag; configure proxies not to rewrite ETags",
    ),
    Row(
        "200, 201 without an ETag, or with one that names no single version: empty, *, a list",
        lambda answer, _: _succeeded(answer) and not _VERSION.fullmatch(answer.version or ""),
        ("unknown", "unknown", "unknown"),
        "the answer has no usable ETag",
    ),
    Row(
        "200, 201 with the ETag that If-Match named",
        lambda answer, condition: (
            _succeeded(answer)
            and isinstance(condition, conditional.IfMatch)
            and _unquoted(condition.version) == _unquoted(answer.version)
        ),
        (None, "unknown", None),
        "the ETag has not changed, so nothing was written",
    ),
    Row(
        "200, 201 with an ETag",
        lambda answer, _: _succeeded(answer),
        ("won", "won", "found"),
        "success",
    ),
    Row(
        "304",
        lambda answer, _: answer.status == 304,
        ("unknown", "unknown", "unknown"),
        "the request did not ask for modifications, so a cache may have answered",
    ),
    Row(
        "404 for the object: code NoSuchKey, BlobNotFound",
        lambda answer, _: answer.status == 404 and answer.code in _NO_OBJECT,
        ("refused", "lost", "absent"),
        "the object does not exist",
    ),
    Row(
        "408, 499; 400 with code RequestTimeout, IncompleteBody, BadDigest",
        lambda answer, _: answer.status in {408, 499} or answer.code in _DAMAGED,
        ("unknown", "unknown", "unknown"),
        "the request arrived damaged or incomplete",
    ),
    Row(
        "409; code OperationAborted, ConditionalRequestConflict under any status",
        lambda answer, _: answer.status == 409 or answer.code in _CONFLICTS,
        ("unknown", "unknown", "unknown"),
        "two writes collided, and either may have been applied",
    ),
    Row(
        "500, 502, 503, every other 5xx but 501; code InternalError, OperationTimedOut, ServiceUnavailable under any status",
        lambda answer, _: (500 <= answer.status < 600 and answer.status != 501) or answer.code in _TROUBLES,
        ("unknown", "unknown", "unknown"),
        "the store may have applied the request",
    ),
    Row(
        "301, 302, 307, …; 400 ExpiredToken, InvalidRequest, …; 401; 403; 404 for the bucket; every other 4xx; 501",
        lambda answer, _: 300 <= answer.status < 500 or answer.status == 501,
        ("refused", "refused", "refused"),
        "the store refused the request",
    ),
    Row(
        "anything else",
        lambda *_: True,
        ("unknown", "unknown", "unknown"),
        "stores don't send this answer",
    ),
)


def row_of(answer: Answer, condition: RequestCondition) -> Row:
    """The first row that applies; the last one always does."""
    return next(row for row in TABLE if row.applies(answer, condition))


def classify_write(answer: Answer, condition: conditional.Condition) -> conditional.WriteOutcome:
    """The outcome of a conditional write."""
    outcome = _outcome(answer, condition)
    assert not isinstance(outcome, conditional.Found | conditional.Absent), f"a write can't be {outcome}"
    return outcome


def classify_read(answer: Answer) -> conditional.ReadOutcome:
    """The outcome of a read."""
    outcome = _outcome(answer, None)
    assert not isinstance(outcome, conditional.Won | conditional.Lost), f"a read can't be {outcome}"
    return outcome


def _outcome(
    answer: Answer, condition: RequestCondition
) -> conditional.ReadOutcome | conditional.WriteOutcome:
    row = row_of(answer, condition)
    why = shorten(f"{row.why}: {answer.summary}")
    match row.meaning(condition):
        case "won":
            assert answer.version is not None
            return conditional.Won(answer.version)
        case "found":
            assert answer.version is not None
            return conditional.Found(answer.body, answer.version)
        case "absent":
            return conditional.Absent()
        case "lost":
            return conditional.Lost(why)
        case "throttled":
            return conditional.Throttled(why)
        case "unknown":
            return conditional.Unknown(why)
        case "refused" | "unusable" as meaning:
            return conditional.Refused(why, unusable=meaning == "unusable")


def _unquoted(version: str | None) -> str:
    """An ETag without its quotes, which some stores leave out."""
    return (version or "").strip('"')


def shorten(why: str, limit: int = MAX_WHY_CHARACTERS) -> str:
    """Shorten a reason to one line of at most `limit` characters. What matters is at its beginning and at its end."""
    line = " ".join(why.split())
    end = limit // 2
    return line if len(line) <= limit else f"{line[: limit - end - 1]}…{line[-end:]}"


def error_text(error: BaseException) -> str:
    """The text of an error of obstore without what it adds for developers. Only that says that a certificate was refused."""
    text, _, debug = str(error).partition("\n\nDebug source:\n")
    if "InvalidCertificate(" not in debug:
        return text
    return (
        f"{text}: the certificate is not trusted, or of another host; if a private authority signed it, "
        "set SSL_CERT_FILE to a PEM file with it and the others"
    )


def obstore_answer(error: BaseException) -> Answer:
    """The answer of the store in the text of an error of obstore, or why there is none."""
    text = error_text(error)
    if _NO_CREDENTIALS.match(text):
        return Answer(fault="no credentials", message=text)
    if text.endswith(_UNSENDABLE):
        return Answer(fault="not sent", message=text)
    found = _STATUS_ERROR.fullmatch(text)
    # obstore uses its specific exceptions (not found, precondition, …) for answers only; any failure may be generic.
    is_generic = type(error).__name__ == "GenericError"
    if found is None or (is_generic and not _GENERIC.fullmatch(found["before"])):
        return Answer(fault="no answer", message=f"{type(error).__name__}: {text}")
    status, body = int(found["status"]), found["body"]
    code, message = error_code(body).strip("-"), _MESSAGE.search(body)
    text = message[1] if message else body
    if not code:
        # All clouds send a code with a 404. Without one, the 404 comes from a proxy.
        return Answer(status, message=text, fault="not the store" if status == 404 else None)
    return Answer(status, code, text)


def error_code(document: str) -> str:
    """The code of a store's error document, `-` if it has none, or "" for anything else.

    A page that quotes an error document isn't one.
    """
    found = _XML_ERROR.match(document)
    if found is not None:
        return found[1] or "-"
    found = _JSON_ERROR.match(document)
    if found is None:
        return ""
    return "NoSuchKey" if _JSON_NO_OBJECT.search(document) else found[1]


def shows_no_object(error: FileNotFoundError) -> bool:
    """Whether obstore's error says that the object doesn't exist. Its cause may also be a missing bucket, or a proxy's page."""
    answer = obstore_answer(error)
    return answer.status == 0 or row_of(answer, None).meaning(None) == "absent"


def put_meaning(error: BaseException, name: str) -> Meaning:
    """What an error of obstore means to a put if absent of the object `name`.

    If the error names other requests only, they were for credentials: the put was not sent.
    """
    answer = obstore_answer(error)
    named = _REQUEST.findall(error_text(error))
    is_sent = any(method == "PUT" and (url == "REDACTED" or name in unquote(url)) for method, url in named)
    if answer.fault == "no credentials" or (named and not is_sent):
        return "refused"
    return row_of(answer, conditional.IfAbsent()).meaning(conditional.IfAbsent())
