"""An HTTP session for aiobotocore that sends a request once, and shows the answer as it came.

`retries={"total_max_attempts": 1}` silences botocore, and only botocore: aiohttp sends an idempotent request
(a PUT is one, to HTTP) **again by itself** when a connection breaks before the answer, and follows
redirects by itself, to a GET for a 303. Either turns our own first write into the 412 of the second, or
a stranger's page into a 200, and hides from the lock what it must know: that an answer was lost.

What botocore takes from an answer before anybody sees it is kept in two headers of our own: the status, which it
makes a 500 where a 200 brings an error, and the length of a body that it expects to be empty.
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
    """What `AioConfig(http_session_cls=...)` takes: aiobotocore's session, without second attempts."""

    async def send(self, request: Any) -> AioAWSResponse:
        """Send it, and note what came back."""
        response = await super().send(request)
        response.headers[RAW_STATUS] = str(response.status_code)
        if not request.stream_output:
            response.headers[RAW_LENGTH] = str(len(await response.content))
        return response

    async def _get_session(self, proxy_url: str | None) -> _SendOnce:
        return _SendOnce(await super()._get_session(proxy_url))


class _SendOnce:
    """The one method of an aiohttp session that aiobotocore calls, with resending and redirects off."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> ClientResponse:
        # Redirects are botocore's affair: it knows a bucket's region, aiohttp only a Location header.
        response = await self._session.request(
            method, allow_redirects=False, middlewares=(_Once(),), **options
        )
        if len(set(response.headers.getall("ETag", ()))) > 1:
            # aiobotocore would keep the last; which one names the object, nobody can tell.
            response.close()
            raise ClientPayloadError("the answer has two etags")
        return response


class _Once:
    """A middleware that lives for one request: aiohttp calls it anew for each time it would send."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if self._sent:
            raise ServerDisconnectedError("the connection broke before the answer; not sent again")
        self._sent = True
        return await send(request)
