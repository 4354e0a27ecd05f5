"""An HTTP session for aiobotocore that sends each request once and preserves the answer.

`retries={"total_max_attempts": 1}` disables the retries of botocore, but not those of aiohttp. aiohttp **resends** an
idempotent request (which a PUT is) if the connection breaks before the answer, and it follows redirects, after a 303 with a
GET. A resent write gets a 412 for its own first attempt, and a redirect can turn a foreign page into a 200. Both hide from
the lock that an answer was lost.

botocore changes two parts of an answer before the caller sees it. This session keeps them in headers of its own: the status,
which botocore replaces by 500 where a 200 carries an error, and the length of a body that botocore expects to be empty.

`SendOnceSession` and `_get_session` are named after aiobotocore's `AIOHTTPSession` and the method that it overrides.
"""

from __future__ import annotations

from typing import Any, Final

from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import (
    ClientHandlerType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ServerDisconnectedError,
)

RAW_STATUS: Final = "lakewarden-status"
RAW_LENGTH: Final = "lakewarden-length"


class SendOnceSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's session without resending, for `AioConfig(http_session_cls=...)`."""

    async def send(self, request: Any) -> AioAWSResponse:
        """Send the request, and keep the raw status and body length in the answer's headers."""
        response = await super().send(request)
        response.headers[RAW_STATUS] = str(response.status_code)
        if not request.stream_output:
            response.headers[RAW_LENGTH] = str(len(await response.content))
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
