"""S3 and whatever speaks it, through aiobotocore: one conditional request a call, every answer an outcome.

What the answers mean is in `classify.py`; here is only how botocore delivers them. It raises `ClientError` for
every status from 300 and for a 200 whose body is an error; transport trouble comes as botocore's, aiohttp's or the
system's exceptions, depending on whether it struck before the headers or in the body.

The client is made by the first request, inside that request's time: a credentials service that hiccups is one
unknown outcome more, and what somebody has to configure is refused until it is there, without a restart.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, assert_never
from urllib.parse import urlsplit

import aiohttp
import anyio
import structlog
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from anyio import AsyncContextManagerMixin
from botocore import exceptions as boto

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.agent.stores.locations import Location, LocationError, parse_location
from lakewarden.agent.stores.port import (
    MAX_OBJECT_BYTES,
    require_probe_key,
    require_timeout,
    too_long,
)
from lakewarden.agent.stores.send_once import RAW_LENGTH, RAW_STATUS, SendOnceSession
from lakewarden.handlers.lease.conditional import (
    Condition,
    IfAbsent,
    IfMatch,
    ReadOutcome,
    Refused,
    WriteOutcome,
)

log = structlog.get_logger(__name__)

_MAX_CONNECTIONS: Final = 64
"""Renewals of many tables fall due together; one waiting for a connection would spend its own timeout on it."""

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
"""Raised before a byte leaves and the same next time: somebody has to configure something. Credentials that
could not be *fetched* (a service that hiccups) are left out: they may come with the next try."""

_NO_CREDENTIALS: Final = (
    "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE, "
    "or give this process a role"
)
_NO_REGION: Final = "no region is set; set LAKEWARDEN_S3_REGION, AWS_DEFAULT_REGION or the profile's region"
_AWS_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn")

_ERROR_DOCUMENT: Final = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<Error[\s>]")
_ERROR_CODE: Final = re.compile(rb"<Code>\s*([^<\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Where and how; credentials come from the standard chain (environment, profile, role), never from here."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None
    """None: botocore's choice, which is path style where an endpoint is set (few of those resolve `bucket.host`)."""


class S3Store(AsyncContextManagerMixin):
    """Objects named `s3://bucket/key` (or `s3a://`), in any bucket the credentials open."""

    def __init__(self, options: S3Options | None = None, *, request_timeout_seconds: float) -> None:
        self._options = options or S3Options()
        self._timeout = require_timeout(request_timeout_seconds)
        self._stack: AsyncExitStack | None = None
        self._client: Any = None
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with AsyncExitStack() as stack:
            self._stack = stack
            try:
                yield self
            finally:
                self._stack = self._client = None

    async def read(self, uri: str) -> ReadOutcome:
        """Body and ETag of one GET."""
        location = _locate(uri)
        if isinstance(location, Refused):
            return location
        return classify_read(await self._request(lambda client: _get(client, location)))

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """One PUT with `If-None-Match: *` or `If-Match: <etag>`."""
        location = _locate(uri)
        if isinstance(location, Refused):
            return location
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        return classify_write(
            await self._request(lambda client: _put(client, location, body, condition)), condition
        )

    async def delete(self, uri: str) -> None:
        """Remove a probe's key; a store that forbids it keeps a few bytes."""
        require_probe_key(uri)
        location = _locate(uri)
        if isinstance(location, Refused):
            why = location.why
        else:
            answer = await self._request(lambda client: _remove(client, location))
            if 200 <= answer.status < 300:
                return
            why = answer.summary
        log.warning("store.probe_key_left_behind", uri=uri, why=why)

    async def _request(self, request: Callable[[Any], Awaitable[Answer]]) -> Answer:
        stack = self._stack
        if stack is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        awaited = "credentials"
        with anyio.move_on_after(self._timeout):
            try:
                client = await self._get_client(stack)
                if isinstance(client, Answer):
                    return client
                awaited = "an answer"
                return await request(client)
            except boto.ClientError as error:
                return _answer_from_error(error)
            except Exception as error:  # noqa: BLE001 - on a stranger's answer botocore's parsers raise just anything
                return _answer_from_exception(error)
        return Answer(
            fault="no answer",
            message=f"{awaited} did not come in time: request_timeout_seconds={self._timeout:g}",
        )

    async def _get_client(self, stack: AsyncExitStack) -> Any:
        """The client, or the `Answer` that says what is missing for one."""
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    opened = await self._create_client(stack)
                    if isinstance(opened, Answer):
                        return opened
                    self._client = opened
        return self._client

    async def _create_client(self, stack: AsyncExitStack) -> Any:
        given = self._options
        # A session of its own for each try: it remembers what it did not find.
        session = AioSession(profile=given.profile)
        try:
            if await session.get_credentials() is None:
                return _not_sent(_NO_CREDENTIALS)
            region = given.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
            making = session.create_client(
                "s3",
                region_name=region,
                endpoint_url=given.endpoint_url,
                config=self._config(),
            )
            async with AsyncExitStack() as attempt:
                client = await attempt.enter_async_context(making)
                if region is None and str(urlsplit(client.meta.endpoint_url).hostname).endswith(_AWS_DOMAINS):
                    return _not_sent(_NO_REGION)
                stack.push_async_exit(attempt.pop_all())
        except ValueError as error:
            # How botocore says that an endpoint is no URL, and a role's endpoint not one to trust.
            return _not_sent(str(error))
        client.meta.events.register_last("before-call.s3", _disable_expect_and_redirects)
        return client

    def _config(self) -> AioConfig:
        style = {None: None, True: {"addressing_style": "path"}, False: {"addressing_style": "virtual"}}
        return AioConfig(
            # Every attempt must be the lock's own: a hidden retry meets its own first write as a 412.
            retries={"total_max_attempts": 1},
            http_session_cls=SendOnceSession,
            # Half the budget, so that an endpoint that isn't there is error_fields apart from one that is slow.
            connect_timeout=self._timeout / 2,
            read_timeout=self._timeout,
            max_pool_connections=_MAX_CONNECTIONS,
            # Said in full, botocore's own name is put together twice a request, an eighth of its whole CPU.
            user_agent="lakewarden",
            # Plain single-part bodies: the trailing checksums that are now the default break older stores.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3=style[self._options.path_style],
        )


async def _put(client: Any, location: Location, body: bytes, condition: Condition) -> Answer:
    match condition:
        case IfAbsent():
            header = {"IfNoneMatch": "*"}
        case IfMatch(version=version):
            header = {"IfMatch": version}
        case _:
            assert_never(condition)
    result = await client.put_object(
        Bucket=location.authority, Key=location.key, Body=body, ContentType="application/json", **header
    )
    return Answer(_status(result), version=result.get("ETag"), unexpected_bytes=_length(result))


async def _get(client: Any, location: Location) -> Answer:
    result = await client.get_object(Bucket=location.authority, Key=location.key)
    length = result.get("ContentLength")
    stream = result["Body"]
    async with stream:
        body = bytearray()
        # One chunk at a time, so that an endless body is left at the bound and not at the end of memory.
        while len(body) <= MAX_OBJECT_BYTES and (chunk := await stream.read(MAX_OBJECT_BYTES)):
            body += chunk
    if len(body) > MAX_OBJECT_BYTES:
        return Answer(fault="too long", message=too_long(length or len(body)))
    if length is None and "transfer-encoding" not in result["ResponseMetadata"]["HTTPHeaders"]:
        return Answer(
            fault="no answer", message="it gives no length, so one cut short would pass for the whole"
        )
    if length is not None and length != len(body):
        return Answer(fault="no answer", message=f"bytes={len(body)} expected={length}")
    return Answer(
        _status(result),
        code=_code_in(body),
        version=result.get("ETag"),
        body=bytes(body),
        encoding=result.get("ContentEncoding", ""),
    )


async def _remove(client: Any, location: Location) -> Answer:
    return Answer(_status(await client.delete_object(Bucket=location.authority, Key=location.key)))


def _disable_expect_and_redirects(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Keep botocore from what it does beside a request.

    `Expect: 100-continue`, which it puts on every PUT, buys a round trip for a body of a hundred bytes, and a server
    that doesn't know it leaves both sides waiting for each other until the timeout. And a bucket in another region
    would be looked up and the request sent there again; marked as redirected already, it is answered as it was asked.
    """
    params["headers"].pop("Expect", None)
    context.setdefault("s3_redirect", {})["redirected"] = True


def _locate(uri: str) -> Location | Refused:
    try:
        location = parse_location(uri)
    except LocationError as error:
        return Refused(str(error))
    if location.scheme != "s3" or not _BUCKET.fullmatch(location.authority):
        return Refused(f"an s3 object is written s3://bucket/key: uri={uri!r}")
    return location


def _headers(result: Mapping[str, Any]) -> Mapping[str, str]:
    headers: Mapping[str, str] = result.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def _status(result: Mapping[str, Any]) -> int:
    return int(_headers(result).get(RAW_STATUS, 0))


def _length(result: Mapping[str, Any]) -> int:
    return int(_headers(result).get(RAW_LENGTH, 0))


def _code_in(body: bytes | bytearray) -> str:
    """The code of S3's error document where one came as an object; botocore looks for it in answers to writes only."""
    if not _ERROR_DOCUMENT.match(body):
        return ""
    found = _ERROR_CODE.search(body)
    return found[1].decode("ascii", "replace") if found else "-"


def _not_sent(why: str) -> Answer:
    return Answer(fault="not sent", message=why)


def _answer_from_error(error: boto.ClientError) -> Answer:
    """botocore's exception back into the answer it was made of."""
    response: Mapping[str, Any] = error.response
    error_fields: Mapping[str, Any] = response.get("Error", {})
    status, message, code = (
        _status(response),
        str(error_fields.get("Message") or ""),
        str(error_fields.get("Code") or ""),
    )
    if code.isdigit():
        # The status, in the place of a code that the body doesn't name.
        code = ""
    if status == 404 and not code:
        return Answer(status, message=message, fault="not the store")
    if region := _headers(response).get("x-amz-bucket-region", error_fields.get("Region")):
        message = f"the bucket's region is {region}; is it the one that is set? {message}"
    return Answer(status, code, message, unexpected_bytes=_length(response))


def _answer_from_exception(error: Exception) -> Answer:
    if isinstance(error, _CONFIGURATION_ERRORS):
        return _not_sent(f"check credentials, region and endpoint: {error}")
    if isinstance(error, boto.SSLError | boto.HTTPClientError) and (why := _tls_misconfiguration(error)):
        return _not_sent(why)
    return Answer(fault="no answer", message=f"{type(error).__name__}: {error}")


def _tls_misconfiguration(error: boto.SSLError | boto.HTTPClientError) -> str | None:
    """What somebody has to mend before a handshake can succeed; other failures of it may pass by themselves."""
    match error.kwargs.get("error"):
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError() as found
        ):
            return (
                f"the endpoint's certificate is not accepted: {found.verify_message}; if an authority of your own "
                "signed it, name its PEM file in AWS_CA_BUNDLE"
            )
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLError(reason="WRONG_VERSION_NUMBER")):
            return "the endpoint speaks no TLS; write it http://"
        case (
            FileNotFoundError()
            | PermissionError()
            | ssl.SSLError(reason="NO_CERTIFICATE_OR_CRL_FOUND") as found
        ):
            return f"the authorities' PEM file can't be read; check AWS_CA_BUNDLE: {found}"
        case _:
            return None
