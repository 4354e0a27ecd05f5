"""S3 and whatever speaks it, through aiobotocore: one conditional request a call, every answer an outcome.

What the answers mean is in `classify.py`; here is only how botocore delivers them. It raises `ClientError` for
every status from 300 and for a 200 whose body is an error (it rewrites the status to 500 and keeps the code);
transport trouble comes as botocore's, aiohttp's or the system's exceptions, depending on whether it struck
before the headers or in the body.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, assert_never

import aiohttp
import anyio
import structlog
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from anyio import AsyncContextManagerMixin
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.agent.stores.locations import Location, LocationError, parse_location
from lakewarden.agent.stores.port import (
    MAX_OBJECT_BYTES,
    require_probe_key,
    require_timeout,
    shorten,
    too_long,
)
from lakewarden.agent.stores.send_once import SendOnceSession
from lakewarden.handlers.conditional import (
    Condition,
    IfAbsent,
    IfMatch,
    ReadOutcome,
    Refused,
    Unknown,
    WriteOutcome,
)

log = structlog.get_logger(__name__)

_MAX_CONNECTIONS: Final = 64
"""Renewals of many tables fall due together; one waiting for a connection would spend its own timeout on it."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

_NOT_SENT: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.NoRegionError,
    boto.ParamValidationError,
    boto.InvalidRegionError,
    boto.EndpointProviderError,
)
"""Raised before a byte leaves and the same next time: somebody has to configure something. Credentials that
could not be *fetched* (a metadata service that hiccups) are left out: they may come with the next try."""

_TRANSPORT: Final = (boto.BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Where and how; credentials come from the standard chain (environment, profile, role), never from here."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None
    """None: path style when an endpoint is given (few of those resolve `bucket.host`), AWS's choice otherwise."""


class S3Store(AsyncContextManagerMixin):
    """Objects named `s3://bucket/key` (or `s3a://`), in any bucket the credentials open."""

    def __init__(self, options: S3Options | None = None, *, request_timeout_seconds: float) -> None:
        self._options = options or S3Options()
        self._timeout = require_timeout(request_timeout_seconds)
        self._client: Any = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        given = self._options
        path_style = given.endpoint_url is not None if given.path_style is None else given.path_style
        config = AioConfig(
            # Every attempt must be the lock's own: a hidden retry meets its own first write as a 412.
            retries={"total_max_attempts": 1},
            http_session_cls=SendOnceSession,
            # Half the budget, so that an endpoint that isn't there is told apart from one that is slow.
            connect_timeout=self._timeout / 2,
            read_timeout=self._timeout,
            max_pool_connections=_MAX_CONNECTIONS,
            # Plain single-part bodies: the trailing checksums that are now the default break older stores.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if path_style else None,
        )
        session = AioSession(profile=given.profile)
        async with session.create_client(
            "s3", region_name=given.region, endpoint_url=given.endpoint_url, config=config
        ) as client:
            client.meta.events.register_last("before-call.s3", _expect_nothing)
            self._client = client
            try:
                yield self
            finally:
                self._client = None

    async def read(self, uri: str) -> ReadOutcome:
        """Body and ETag of one GET."""
        location = _locate(uri)
        if isinstance(location, Refused):
            return location
        given = await self._ask(lambda: self._get(location))
        return classify_read(given) if isinstance(given, Answer) else given

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """One PUT with `If-None-Match: *` or `If-Match: <etag>`."""
        location = _locate(uri)
        if isinstance(location, Refused):
            return location
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        given = await self._ask(lambda: self._put(location, body, condition))
        return classify_write(given, condition) if isinstance(given, Answer) else given

    async def delete(self, uri: str) -> None:
        """Remove a probe's key; a store that forbids it keeps a few bytes."""
        require_probe_key(uri)
        location = _locate(uri)
        given = location if isinstance(location, Refused) else await self._ask(lambda: self._remove(location))
        if not isinstance(given, Answer) or given.status >= 300:
            log.warning("store.probe_key_left_behind", uri=uri, why=given.why)

    async def _ask(
        self, request: Callable[[], Awaitable[Answer | Refused | Unknown]]
    ) -> Answer | Refused | Unknown:
        if self._client is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        with anyio.move_on_after(self._timeout):
            try:
                return await request()
            except boto.ClientError as error:
                return _answer_of(error)
            except _NOT_SENT as error:
                return Refused(shorten(f"nothing was sent; check credentials, region and endpoint: {error}"))
            except _TRANSPORT as error:
                return Unknown(shorten(f"{type(error).__name__}: {error}"))
        return Unknown(f"no answer in time: request_timeout_seconds={self._timeout}")

    async def _put(self, location: Location, body: bytes, condition: Condition) -> Answer:
        match condition:
            case IfAbsent():
                header = {"IfNoneMatch": "*"}
            case IfMatch(version=version):
                header = {"IfMatch": version}
            case _:
                assert_never(condition)
        result = await self._client.put_object(
            Bucket=location.authority, Key=location.key, Body=body, ContentType="application/json", **header
        )
        return Answer(_status(result), version=result.get("ETag"))

    async def _get(self, location: Location) -> Answer | Refused | Unknown:
        result = await self._client.get_object(Bucket=location.authority, Key=location.key)
        length = result.get("ContentLength")
        stream = result["Body"]
        async with stream:
            body = bytearray()
            # One chunk at a time, so that an endless body is left at the bound and not at the end of memory.
            while len(body) <= MAX_OBJECT_BYTES and (chunk := await stream.read(MAX_OBJECT_BYTES)):
                body += chunk
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(length or len(body)))
        if length is None and "transfer-encoding" not in result["ResponseMetadata"]["HTTPHeaders"]:
            return Unknown("the answer gives no length, so a body cut short would pass for the whole one")
        if length is not None and length != len(body):
            return Unknown(f"the body was cut short: bytes={len(body)} expected={length}")
        return Answer(_status(result), version=result.get("ETag"), body=bytes(body))

    async def _remove(self, location: Location) -> Answer:
        return Answer(_status(await self._client.delete_object(Bucket=location.authority, Key=location.key)))


def _expect_nothing(params: dict[str, Any], **_: Any) -> None:
    """Leave `Expect: 100-continue` out, which botocore puts on every PUT.

    It buys a round trip for a body of a hundred bytes, and a server that doesn't know it leaves both sides waiting
    for each other until the timeout.
    """
    params["headers"].pop("Expect", None)


def _locate(uri: str) -> Location | Refused:
    try:
        location = parse_location(uri)
    except LocationError as error:
        return Refused(str(error))
    if location.scheme != "s3" or not _BUCKET.fullmatch(location.authority):
        return Refused(f"an s3 object is written s3://bucket/key: uri={uri!r}")
    return location


def _status(result: Mapping[str, Any]) -> int:
    return int(result["ResponseMetadata"]["HTTPStatusCode"])


def _answer_of(error: boto.ClientError) -> Answer:
    """botocore's exception back into the answer it was made of."""
    response: Mapping[str, Any] = error.response
    told: Mapping[str, Any] = response.get("Error", {})
    return Answer(
        status=int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
        code=str(told.get("Code", "")),
        message=str(told.get("Message", "")),
    )
