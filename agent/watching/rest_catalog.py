"""Catalogs of Iceberg's REST protocol.

- A REST server's `/v1/config` adds some properties. It is asked once.
- An OAuth2 token is renewed when a fifth of its lifetime is left. If that fails, the old one is used until it ends. Simultaneous
  requests wait for one renewal.
- Redirects are not followed: they would send credentials to another place.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio

from lakewarden.agent.clock import monotonic
from lakewarden.agent.stores.locations import aws_region
from lakewarden.agent.watching.catalog import MAX_PAGES, MAX_REQUESTS, Catalog, CatalogAnswer, TableName
from lakewarden.agent.watching.files import (
    MAX_FILE_BYTES,
    AbsentFileError,
    UnreadableTableError,
    aws_configured,
)
from lakewarden.events.access.tokens import RENEW_SHARE, TokenError, error_code, token_of
from lakewarden.events.codec import json_object
from lakewarden.handlers.lease.store_answers import shorten

EXPIRED = (401, 419)


class RestCatalog(Catalog):
    """A server of Iceberg's REST protocol."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._session: Any = None
        self._configured: Mapping[str, str] | None = None
        self._starting = anyio.Lock()
        self._token = ""
        self._renew_at = self._expires_at = float("-inf")
        self._renewing = anyio.Lock()
        self._signer: Any = None

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:
        path = f"{await self._namespace(name.namespace)}/tables/{quote(name.table, safe='')}"
        condition = {"If-None-Match": known.etag} if known is not None and known.etag else {}
        status, headers, body = await self._get(path, {"snapshots": "all" if whole else "refs"}, condition)
        if known is not None and (status == 304 or hash(body) == known.digest):
            return known
        fields = _decoded(body)
        metadata = fields.get("metadata")
        if not isinstance(metadata, dict):
            raise UnreadableTableError("the answer has no metadata")
        pointer = str(fields.get("metadata-location") or hash(body))
        if known is not None and pointer == known.pointer and not whole:
            return known
        access = _vended(fields, str(metadata.get("location", "")))
        return CatalogAnswer(pointer, metadata, whole, headers.get("ETag"), access, hash(body))

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        path = f"{await self._namespace(namespace)}/tables"
        found: list[str] = []
        query: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            _, _, body = await self._get(path, query)
            fields = _decoded(body)
            try:
                found += [str(each["name"]) for each in fields["identifiers"]]
            except (KeyError, TypeError) as error:
                raise UnreadableTableError("the answer has no identifiers") from error
            token = fields.get("next-page-token")
            if not token:
                return found
            query = {"pageToken": str(token)}
        raise UnreadableTableError(f"more than {MAX_PAGES:,} pages of tables")

    async def _namespace(self, namespace: tuple[str, ...]) -> str:
        configured = await self._configuration()
        separator = quote(unquote(configured.get("namespace-separator", "%1F")), safe="")
        levels = separator.join(quote(each, safe="") for each in namespace)
        prefix = configured.get("prefix", "").strip("/")
        return f"{quote(unquote(prefix), safe='/') + '/' * bool(prefix)}namespaces/{levels}"

    async def _configuration(self) -> Mapping[str, str]:
        """The properties with those of the server. It is asked once."""
        async with self._starting:
            if self._configured is None:
                warehouse = self._properties.get("warehouse")
                _, _, body = await self._get("config", {"warehouse": warehouse} if warehouse else {})
                fields = _decoded(body)
                merged = {
                    **_of_server(fields.get("defaults")),
                    **self._properties,
                    **_of_server(fields.get("overrides")),
                }
                self._properties = self._configured = merged
            return self._configured

    async def _get(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self._properties['uri'].rstrip('/')}/v1/{path}{'?' if query else ''}{urlencode(query)}"
        given = {"Accept": "application/json", **self._own_headers(), **(headers or {})}
        authorized, token = await self._authorized(url, given)
        status, answered, body = await self._send("GET", url, authorized)
        if status in EXPIRED and token is not None:
            self._refuse(token)
            authorized, _ = await self._authorized(url, given)
            status, answered, body = await self._send("GET", url, authorized)
        if status in (401, 403):
            self._signer = None  # the next request reads the credentials of AWS again
        if status not in (200, 304):
            raise _refusal(status, answered, b"" if _quotes(body, authorized) else body)
        return status, answered, body

    def _own_headers(self) -> dict[str, str]:
        prefix = "header."
        return {
            key.removeprefix(prefix): each for key, each in self._properties.items() if key.startswith(prefix)
        }

    async def _authorized(self, url: str, headers: dict[str, str]) -> tuple[dict[str, str], str | None]:
        """The headers with the credentials, and the OAuth2 token in them that can be renewed."""
        if self._properties.get("rest.sigv4-enabled", "").lower() == "true":
            return await self._signed(url, headers), None
        if self._secret("credential"):
            token = await self._issued_token()
            return {**headers, "Authorization": f"Bearer {token}"}, token
        token = self._secret("token")
        return {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}, None

    def _secret(self, key: str) -> str:
        """A property, or the content of the file that `<key>-file` names, read for each request: it may be replaced."""
        path = self._properties.get(f"{key}-file")
        if path is None:
            return self._properties.get(key, "")
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableTableError(f"{key}-file can't be read: {error}") from None

    async def _issued_token(self) -> str:
        async with self._renewing:
            now = monotonic()
            if now >= self._renew_at:
                try:
                    self._token, lifetime = await self._request_token()
                except UnreadableTableError:
                    if now >= self._expires_at:
                        raise
                else:
                    self._expires_at = now + lifetime
                    self._renew_at = now + lifetime * (1 - RENEW_SHARE)
            return self._token

    def _refuse(self, token: str) -> None:
        """Request a new token, unless another look has just done so."""
        if token == self._token:
            self._renew_at = self._expires_at = float("-inf")

    async def _request_token(self) -> tuple[str, float]:
        user, separator, secret = self._secret("credential").partition(":")
        form = {"grant_type": "client_credentials", "scope": self._properties.get("scope", "catalog")}
        form |= {"client_id": user, "client_secret": secret} if separator else {"client_secret": user}
        form |= {key: self._properties[key] for key in ("audience", "resource") if key in self._properties}
        url = self._properties.get(
            "oauth2-server-uri", f"{self._properties['uri'].rstrip('/')}/v1/oauth/tokens"
        )
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        status, _, body = await self._send("POST", url, headers, urlencode(form).encode())
        if status != 200:
            raise UnreadableTableError(
                f"the token endpoint answers {status}{error_code(body)}; check credential, scope and oauth2-server-uri"
            )
        try:
            return token_of(body, url)
        except TokenError as error:
            raise UnreadableTableError(str(error)) from None

    async def _signed(self, url: str, headers: dict[str, str]) -> dict[str, str]:
        """The headers with a signature of AWS, version 4, of a request without a body."""
        # Imported here because it takes half a second, which other catalogs don't need.
        from aiobotocore.session import AioSession
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        if self._signer is None:
            self._signer = AioSession()
        with aws_configured():
            region = self._properties.get("rest.signing-region") or aws_region(self._signer)
            found = await self._signer.get_credentials()
            frozen = None if found is None else await found.get_frozen_credentials()
        if frozen is None or not region:
            raise UnreadableTableError(
                "rest.sigv4-enabled needs credentials of AWS, and a region (rest.signing-region)"
            )
        request = AWSRequest("GET", url, headers=headers)
        SigV4Auth(frozen, self._properties.get("rest.signing-name", "execute-api"), region).add_auth(request)
        return dict(request.headers.items())

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request. Returns any answer."""
        # Imported here because commands that ask no catalog need them as little as clients of stores.
        import aiohttp
        from yarl import URL

        if self._session is None:
            cafile = self._properties.get("ssl.cabundle")
            try:
                context = ssl.create_default_context(cafile=cafile)
            except OSError as error:
                raise UnreadableTableError(f"ssl.cabundle={cafile} can't be read: {error}") from error
            self._session = await self._open.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=context, limit=MAX_REQUESTS),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=self._timeout),
                )
            )
        self.requests += 1
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=data,
                allow_redirects=False,
                proxy=_proxy_for(url),
            ) as answer:
                body = bytearray()
                async for part in answer.content.iter_any():
                    body += part
                    if len(body) > MAX_FILE_BYTES:
                        raise UnreadableTableError(f"the answer has more than {MAX_FILE_BYTES:,} bytes")
                return answer.status, answer.headers, bytes(body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise UnreadableTableError(shorten(str(error) or repr(error))) from error


def _proxy_for(url: str) -> str | None:
    """That of the environment. aiohttp's own way would also send what ~/.netrc has for the host."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _of_server(found: Any) -> dict[str, str]:
    """The properties that a server may set. It names no files of this machine."""
    names = ("prefix", "uri", "namespace-separator", "oauth2-server-uri", "scope", "header.", "rest.s")
    given = found if isinstance(found, dict) else {}
    return {key: str(each) for key, each in given.items() if key.startswith(names)}


def _vended(fields: Mapping[str, Any], location: str) -> dict[str, str]:
    """The credentials for the files below a location: those of its longest prefix, else those of the table."""
    listed = fields.get("storage-credentials")
    found = [
        each
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and location.startswith(str(each.get("prefix", location)))
    ]
    best = max(found, key=lambda each: len(str(each.get("prefix", ""))), default=fields)
    given = best.get("config")
    config = given if isinstance(given, dict) else {}
    return {key: str(each) for key, each in config.items()} if "s3.access-key-id" in config else {}


def _quotes(body: bytes, sent: Mapping[str, str]) -> bool:
    """Whether an answer has a credential of its request."""
    public = ("Accept", "If-None-Match")
    words = {value.rpartition(" ")[2].encode() for key, value in sent.items() if key not in public}
    return any(word and word in body for word in words)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnreadableTableError("the answer is not a JSON object; is uri that of an Iceberg REST catalog?")
    return found


_ADVICE = {
    401: "check its credential or token",
    403: "permit the watcher to load the table",
    419: "its token has expired; renew it",
}


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> UnreadableTableError:
    """The error of an answer. The server's own text may quote a token that it refuses, so it is left out then."""
    error = None if status in EXPIRED else json_object(body).get("error")
    why = ""
    if isinstance(error, dict) and "message" in error:
        why = f": {shorten(str(error['message']))} ({error.get('type')})"
    elif 300 <= status < 400:
        why = f" to {shorten(headers.get('Location', ''))}; set uri to that"
    advice = f"; {_ADVICE[status]}" if status in _ADVICE else ""
    kind = AbsentFileError if status == 404 else UnreadableTableError
    return kind(f"HTTP {status}{why}{advice}")
