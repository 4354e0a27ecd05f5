"""An HTTP session for aiobotocore that sends a request once, whatever lies between us and the wire.

`retries={"total_max_attempts": 1}` silences botocore, and only botocore: aiohttp sends an idempotent request
(a PUT is one, to HTTP) **again by itself** when a connection breaks before the answer, and follows
redirects by itself, to a GET for a 303. Either turns our own first write into the 412 of the second, or
a stranger's page into a 200, and hides from the lock what it must know: that an answer was lost.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, ServerDisconnectedError


class SendOnceSession(AIOHTTPSession):  # type: ignore[misc]
    """What `AioConfig(http_session_cls=...)` takes: aiobotocore's session, without second attempts."""

    async def _get_session(self, proxy_url: str | None) -> _SendOnce:
        return _SendOnce(await super()._get_session(proxy_url))


class _SendOnce:
    """The one method of an aiohttp session that aiobotocore calls, with resending and redirects off."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> ClientResponse:
        # Redirects are botocore's affair: it knows a bucket's region, aiohttp only a Location header.
        return await self._session.request(method, allow_redirects=False, middlewares=(_Once(),), **options)


class _Once:
    """A middleware that lives for one request: aiohttp calls it anew for each time it would send."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if self._sent:
            raise ServerDisconnectedError("the connection broke before the answer; not sent again")
        self._sent = True
        return await send(request)
