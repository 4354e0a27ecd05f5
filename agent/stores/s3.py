"""S3 and compatible stores through aiobotocore: each call sends one conditional request and returns an outcome.

`store_answers.py` defines what an answer means. This module translates between botocore and `Answer`. botocore raises
`ClientError` for every status from 300 and for a 200 whose body is an error. Transport errors are exceptions of botocore, of
aiohttp or of the system, depending on whether they occur before the headers or in the body.

The first request creates the client. It waits for the credentials as long as for an answer, so an outage of the credentials
service is one more unknown outcome, and a missing setting is refused until it is there, without a restart. Building the client
is computation only (botocore reads its model of S3), and no timeout includes it: a busy machine would start it again and again.
"""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar, assert_never
from urllib.parse import urlsplit

import aiohttp
import anyio
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp import (
    ClientHandlerType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ServerDisconnectedError,
)
from botocore import exceptions as boto

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import port
from lakewarden.agent.stores.locations import Location, aws_region, read_credentials_again
from lakewarden.handlers.lease.conditional import (
    Condition,
    IfAbsent,
    IfMatch,
    ReadOutcome,
    Refused,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.store_answers import Answer, classify_read, classify_write, error_code

T = TypeVar("T")

_MAX_CONNECTIONS: Final = 64
"""Renewals of many tables are due together, and waiting for a connection would use up a request's timeout."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

_CONFIGURATION_ERRORS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.NoRegionError,
    boto.InvalidRegionError,
    boto.ParamValidationError,
    boto.EndpointProviderError,
)
"""Raised before anything is sent, and raised again until the configuration changes. The errors of *fetching* credentials are
not among them, because the next try may succeed."""

NO_CREDENTIALS: Final = (
    "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE, "
    "or run with an IAM role"
)
_NO_REGION: Final = "no region is set; set AWS_REGION, AWS_DEFAULT_REGION or the profile's region"
_AWS_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn")

_FIRST_ERROR: Final = 300
"""From this status on, botocore reads the body of an answer whatever the request."""

_DIRECTORY_BUCKET: Final = "--x-s3"
"""How the name of a bucket of S3 Express One Zone ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Endpoint and addressing. Credentials always come from the standard chain (environment, profile, role)."""

    endpoint_url: str | None = None
    path_style: bool | None = None
    """None: botocore's default, which is path style where an endpoint is set (few of those resolve `bucket.host`)."""
    encryption: str | None = None
    """Encryption of what is written: the header that a bucket policy may demand."""
    kms_key: str | None = None
    requester_pays: bool = False
    bucket_owner: str | None = None
    """The account id that the bucket must have."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        encryption, _, key = (settings.s3_encryption or "").partition("=")
        return cls(
            endpoint_url=settings.s3_endpoint,
            path_style=None if settings.s3_addressing == "auto" else settings.s3_addressing == "path",
            encryption=encryption or None,
            kms_key=key or None,
            requester_pays=settings.s3_requester_pays,
            bucket_owner=settings.s3_bucket_owner,
        )

    def of_requests(self) -> dict[str, str]:
        payer = {"RequestPayer": "requester"} if self.requester_pays else {}
        return payer | ({"ExpectedBucketOwner": self.bucket_owner} if self.bucket_owner else {})

    def of_writes(self) -> dict[str, str]:
        encryption = {"ServerSideEncryption": self.encryption} if self.encryption else {}
        return encryption | ({"SSEKMSKeyId": self.kms_key} if self.kms_key else {})


class S3Store(port.LocatingStore[Location]):
    """Objects `s3://bucket/key` (or `s3a://`), in any bucket that the credentials give access to."""

    def __init__(self, options: S3Options | None = None, *, request_timeout_seconds: float) -> None:
        self._options = options or S3Options()
        self._of_requests = self._options.of_requests()
        self._of_writes = self._of_requests | self._options.of_writes()
        self._timeout = port.require_timeout(request_timeout_seconds)
        self._stack: AsyncExitStack | None = None
        self._client: Any = None
        self._credentials: Any = None
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with AsyncExitStack() as stack:
            self._stack = stack
            try:
                yield self
            finally:
                self._stack = self._client = None

    def _key_of(self, location: Location, uri: str) -> Location | Refused:
        if location.scheme != "s3" or not _BUCKET.fullmatch(location.authority):
            return Refused(f"an S3 object's URI has the form s3://bucket/key: uri={uri!r}", unusable=True)
        return location

    async def _read(self, key: Location) -> ReadOutcome:
        return classify_read(await self._request(lambda client: _get(client, key, self._of_requests)))

    async def _write(self, key: Location, body: bytes, condition: Condition) -> WriteOutcome:
        answer = await self._request(lambda client: _put(client, key, body, condition, self._of_writes))
        outcome = classify_write(answer, condition)
        if isinstance(outcome, Won):
            self.keeps_versions = answer.kept_as not in {None, "null"}
        return outcome

    async def _remove(self, key: Location) -> str | None:
        answer = await self._request(lambda client: _remove(client, key, self._of_requests))
        return None if 200 <= answer.status < 300 else answer.summary

    async def _request(self, request: Callable[[Any], Awaitable[Answer]]) -> Answer:
        stack = self._stack
        if stack is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        if self._client is None:
            failure = await self._within_timeout(lambda: self._open_client(stack), "credentials")
            if failure is not None:
                return failure
        answer = await self._within_timeout(lambda: request(self._client), "answer")
        if answer.rejects_credentials:
            await self._within_timeout(lambda: read_credentials_again(self._credentials), "credentials")
        return answer

    async def _within_timeout(self, work: Callable[[], Awaitable[T]], awaited: str) -> T | Answer:
        """Return what `work` returns, or an `Answer` that says why there is none."""
        with anyio.move_on_after(self._timeout):
            try:
                return await work()
            except boto.ClientError as error:
                return _answer_from_error(error)
            except Exception as error:  # noqa: BLE001 - on an unexpected answer botocore's parsers raise any exception
                return _answer_from_exception(error)
        return Answer(
            fault="no answer",
            message=f"no {awaited} within the timeout: request_timeout_seconds={self._timeout:g}",
        )

    async def _open_client(self, stack: AsyncExitStack) -> Answer | None:
        """Create the client, unless another request has. Return None, or what prevented it."""
        async with self._opening:
            return None if self._client is not None else await self._create_client(stack)

    async def _create_client(self, stack: AsyncExitStack) -> Answer | None:
        options = self._options
        # A new session for each try, because a session caches that it found no credentials.
        session = AioSession()
        try:
            self._credentials = await session.get_credentials()
            if self._credentials is None:
                return _not_sent(NO_CREDENTIALS)
            region = aws_region(session)
            making = session.create_client(
                "s3", region_name=region, endpoint_url=options.endpoint_url, config=self._config()
            )
            async with AsyncExitStack() as attempt:
                with anyio.CancelScope(shield=True):  # the session has the credentials: nothing is waited for
                    client = await attempt.enter_async_context(making)
                if region is None and str(urlsplit(client.meta.endpoint_url).hostname).endswith(_AWS_DOMAINS):
                    return _not_sent(_NO_REGION)
                stack.push_async_exit(attempt.pop_all())
        except ValueError as error:
            # botocore raises ValueError for an invalid endpoint URL, and for an untrusted endpoint of a role.
            return _not_sent(str(error))
        client.meta.events.register_last("before-call.s3", _disable_expect_and_redirects)
        self._client = client
        return None

    def _config(self) -> AioConfig:
        style = {None: None, True: {"addressing_style": "path"}, False: {"addressing_style": "virtual"}}
        return AioConfig(
            # A hidden retry would get a 412 for the write of its own first attempt.
            retries={"total_max_attempts": 1},
            http_session_cls=SendOnceSession,
            # Half the timeout, so that the error distinguishes an unreachable endpoint from a slow one.
            connect_timeout=self._timeout / 2,
            read_timeout=self._timeout,
            max_pool_connections=_MAX_CONNECTIONS,
            # botocore composes its own user agent twice per request, which takes an eighth of its CPU time.
            user_agent="lakewarden",
            # Plain bodies without trailing checksums, botocore's default, which older stores reject.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3=style[self._options.path_style],
        )


async def _put(
    client: Any, location: Location, body: bytes, condition: Condition, more: Mapping[str, str]
) -> Answer:
    match condition:
        case IfAbsent():
            header = {"IfNoneMatch": "*"}
        case IfMatch(version=version):
            header = {"IfMatch": version}
        case _:
            assert_never(condition)
    result = await client.put_object(
        Bucket=location.authority,
        Key=location.key,
        Body=body,
        ContentType="application/json",
        **_checksum(location.authority, body),
        **header,
        **more,
    )
    return Answer(
        _number(result, RAW_STATUS),
        version=result.get("ETag"),
        unexpected_bytes=_number(result, RAW_LENGTH),
        kept_as=result.get("VersionId"),
    )


def _checksum(bucket: str, body: bytes) -> dict[str, str]:
    """A bucket whose Object Lock has a default retention demands one, and a directory bucket doesn't have Content-MD5."""
    if bucket.endswith(_DIRECTORY_BUCKET):
        return {"ChecksumCRC32": _base64(zlib.crc32(body).to_bytes(4, "big"))}
    return {"ContentMD5": _base64(hashlib.md5(body, usedforsecurity=False).digest())}


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


async def _get(client: Any, location: Location, more: Mapping[str, str]) -> Answer:
    result = await client.get_object(Bucket=location.authority, Key=location.key, **more)
    length = result.get("ContentLength")
    stream = result["Body"]
    async with stream:
        body = bytearray()
        # In chunks, so that an endless body is abandoned at the limit and does not fill the memory.
        while len(body) <= port.MAX_OBJECT_BYTES and (chunk := await stream.read(port.MAX_OBJECT_BYTES)):
            body += chunk
    if len(body) > port.MAX_OBJECT_BYTES:
        return Answer(fault="too long", message=port.too_long(length or len(body)))
    if length is None and "transfer-encoding" not in result["ResponseMetadata"]["HTTPHeaders"]:
        return Answer(
            fault="no answer", message="the answer has no length, so a truncated body could not be recognised"
        )
    if length is not None and length != len(body):
        return Answer(fault="no answer", message=f"bytes={len(body)} expected={length}")
    return Answer(
        _number(result, RAW_STATUS),
        code=error_code(body.decode(errors="replace")),
        version=result.get("ETag"),
        body=bytes(body),
        encoding=result.get("ContentEncoding", ""),
    )


async def _remove(client: Any, location: Location, more: Mapping[str, str]) -> Answer:
    return Answer(
        _number(await client.delete_object(Bucket=location.authority, Key=location.key, **more), RAW_STATUS)
    )


def _disable_expect_and_redirects(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Remove two features of botocore that send more than one request, or wait for more than one answer.

    - `Expect: 100-continue`, which botocore adds to every PUT, costs a round trip for a body of a hundred bytes. With a
      server that doesn't support it, both sides wait for each other until the timeout.
    - For a bucket in another region botocore looks the region up and sends the request again, unless the request is marked
      as redirected.
    """
    params["headers"].pop("Expect", None)
    context.setdefault("s3_redirect", {})["redirected"] = True


def _headers(result: Mapping[str, Any]) -> Mapping[str, str]:
    headers: Mapping[str, str] = result.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def _number(result: Mapping[str, Any], header: str) -> int:
    return int(_headers(result).get(header, 0))


def _not_sent(why: str) -> Answer:
    return Answer(fault="not sent", message=why)


def _answer_from_error(error: boto.ClientError) -> Answer:
    response: Mapping[str, Any] = error.response
    error_fields: Mapping[str, Any] = response.get("Error", {})
    status, message = _number(response, RAW_STATUS), str(error_fields.get("Message") or "")
    # botocore also finds a code in a page that quotes an error, and none in a document with a namespace.
    code = _headers(response).get(RAW_CODE, str(error_fields.get("Code") or ""))
    if status == 404 and not code:
        return Answer(status, message=message, fault="not the store")
    if region := _headers(response).get("x-amz-bucket-region", error_fields.get("Region")):
        message = f"the bucket is in region {region}; set that region: {message}"
    return Answer(status, code, message, unexpected_bytes=_number(response, RAW_LENGTH))


def _answer_from_exception(error: Exception) -> Answer:
    if isinstance(error, _CONFIGURATION_ERRORS):
        return _not_sent(f"check credentials, region and endpoint: {error}")
    if isinstance(error, boto.SSLError | boto.HTTPClientError) and (why := _tls_misconfiguration(error)):
        return _not_sent(why)
    return Answer(fault="no answer", message=f"{type(error).__name__}: {error}")


def _tls_misconfiguration(error: boto.SSLError | boto.HTTPClientError) -> str | None:
    """The text for a TLS error that an operator must fix; None for a handshake that failed for another reason."""
    match error.kwargs.get("error"):
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError() as found
        ):
            return (
                f"the endpoint's certificate is not trusted: {found.verify_message}; if a private authority "
                "signed it, set AWS_CA_BUNDLE to its PEM file"
            )
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLError(reason="WRONG_VERSION_NUMBER")):
            return "the endpoint does not use TLS; write it with http://"
        case (
            FileNotFoundError()
            | PermissionError()
            | ssl.SSLError(reason="NO_CERTIFICATE_OR_CRL_FOUND") as found
        ):
            return f"the PEM file of certificate authorities can't be read; check AWS_CA_BUNDLE: {found}"
        case _:
            return None


RAW_STATUS: Final = "lakewarden-status"
RAW_LENGTH: Final = "lakewarden-length"
RAW_CODE: Final = "lakewarden-code"


class SendOnceSession(AIOHTTPSession):  # type: ignore[misc]
    """An HTTP session for aiobotocore that sends each request once and preserves the answer (`AioConfig(http_session_cls=...)`).

    `retries={"total_max_attempts": 1}` disables the retries of botocore, but not those of aiohttp. aiohttp **resends** an
    idempotent request (which a PUT is) if the connection breaks before the answer, and it follows redirects, after a 303 with a
    GET. A resent write gets a 412 for its own first attempt, and a redirect can turn a foreign page into a 200. Both hide from
    the lock that an answer was lost.

    botocore changes three parts of an answer before the caller sees it. This session keeps them in headers of its own: the
    status, which botocore replaces by 500 where a 200 carries an error, the length of a body that botocore expects to be empty,
    and the code of an error.
    """

    async def send(self, request: Any) -> AioAWSResponse:
        """Send the request, and keep the raw status, body length and code in the answer's headers."""
        response = await super().send(request)
        response.headers[RAW_STATUS] = str(response.status_code)
        if response.status_code >= _FIRST_ERROR or not request.stream_output:
            content = await response.content
            response.headers[RAW_LENGTH] = str(len(content))
            response.headers[RAW_CODE] = error_code(content.decode(errors="replace")).strip("-")
        return response

    async def _get_session(self, proxy_url: str | None) -> _SendOnceClient:
        return _SendOnceClient(await super()._get_session(proxy_url))


class _SendOnceClient:
    """The only method of aiohttp's session that aiobotocore calls, without resending and redirects."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> ClientResponse:
        # botocore handles redirects: it knows the bucket's region, aiohttp only the Location header.
        response = await self._session.request(
            method, allow_redirects=False, middlewares=(_RefuseSecondSend(),), **options
        )
        if len(set(response.headers.getall("ETag", ()))) > 1:
            # aiobotocore would use the last one, but it is not known which one is the object's.
            response.close()
            raise ClientPayloadError("the answer has two different ETags")
        return response


class _RefuseSecondSend:
    """A middleware for one request. aiohttp calls it before each send, and the second call raises."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if self._sent:
            raise ServerDisconnectedError(
                "the connection broke before the answer; the request was not resent"
            )
        self._sent = True
        return await send(request)
