"""Asks catalogs of Iceberg for a table's current metadata, and for the tables of a namespace.

| type | request | answer |
| --- | --- | --- |
| `rest` | `GET …/tables/T?snapshots=refs` | the metadata with each branch's newest snapshot; 304 if an ETag hasn't changed |
| `sql` | one SELECT of `iceberg_tables` | the location of the metadata file |
| `glue`, `hive` | `GetTable`, `get_table` | the location of the metadata file, a parameter of the table |

- A catalog is configured by the properties that pyiceberg has for it (docs/watch.md). A REST server's `/v1/config` adds some.
- Each failure is an `UnreadableTableError` that names the catalog and the table. No text has a credential. The watcher
  looks again in its next period, so no request is repeated, except once with a new token after a 401 or 419.
- An OAuth2 token is renewed when a fifth of its lifetime is left. If that fails, the old one is used until it ends. Simultaneous
  requests wait for one renewal.
- `TIMEOUT_SECONDS` bounds each request with its answer, `MAX_FILE_BYTES` its size. A catalog has `MAX_REQUESTS` at a time:
  one that hangs delays its own tables only.
- Redirects are not followed: they would send credentials to another place.
"""

from __future__ import annotations

import importlib
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
from anyio import to_thread
from anyio.abc import SocketStream

from lakewarden.agent.clock import monotonic
from lakewarden.agent.settings import Settings, catalog_entry
from lakewarden.agent.stores.locations import aws_region
from lakewarden.agent.watching.files import (
    MAX_FILE_BYTES,
    TIMEOUT_SECONDS,
    AbsentFileError,
    UnreadableTableError,
    aws_configured,
)
from lakewarden.agent.watching.thrift import IncompleteError, ThriftError, answer_of, call_of
from lakewarden.events.access.tokens import RENEW_SHARE, TokenError, error_code, token_of
from lakewarden.events.codec import json_object
from lakewarden.handlers.lease.store_answers import shorten

MAX_REQUESTS = 8
"""To one catalog at the same time."""
MAX_PAGES = 1_000
"""Pages of the list of a namespace's tables."""
EXPIRED = (401, 419)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by its catalog. A pattern has wildcards in `table`."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @classmethod
    def of(cls, entry: str) -> TableName | None:
        """The name in an entry of `watch`, or None if it is a URI."""
        found = catalog_entry(entry)
        if found is None:
            return None
        catalog, namespace, table = found
        return cls(catalog, tuple(namespace.split(".")), table)

    def __str__(self) -> str:
        return f"{self.catalog}:{'.'.join(self.namespace)}.{self.table}"


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """What a catalog says of a table."""

    pointer: str
    """Changes with each commit: the location of the metadata file."""
    metadata: Mapping[str, Any] | None = None
    """None: it is to be read from that file."""
    is_whole: bool = True
    """Whether the metadata has all snapshots that the catalog lists."""
    etag: str | None = None
    access: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials that the catalog vends for the table's files, as Iceberg's properties of S3. Empty: none."""
    digest: int | None = None
    """Digest of the whole answer. One that is sent again isn't decoded again."""


class Catalog(ABC):
    """One catalog."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        self.name, self._properties, self._timeout = name, properties, timeout
        self.rounds = anyio.CapacityLimiter(MAX_REQUESTS)
        """Looks at tables of this catalog at the same time."""
        self.requests = 0
        """How many were sent."""
        self._open = AsyncExitStack()

    async def load(
        self, name: TableName, known: CatalogAnswer | None, *, whole: bool = False
    ) -> CatalogAnswer:
        """The table; `known` itself if it has not changed since. `whole`: with all snapshots."""
        return await self._bounded(
            lambda: self._load(name, known, whole=whole),
            f"table {'.'.join((*name.namespace, name.table))} of catalog {self.name}",
        )

    async def tables(self, namespace: tuple[str, ...]) -> list[str]:
        return await self._bounded(
            lambda: self._tables(namespace), f"namespace {'.'.join(namespace)} of catalog {self.name}"
        )

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._timeout):
            await self._open.aclose()

    async def _bounded(self, request: Callable[[], Awaitable[_Result]], what: str) -> _Result:
        try:
            await self._start()
            with anyio.fail_after(self._timeout):
                return await request()
        except TimeoutError:
            raise UnreadableTableError(f"{what}: no answer within {self._timeout:g} s") from None
        except UnreadableTableError as error:
            raise type(error)(f"{what}: {error}") from error

    async def _start(self) -> None:  # noqa: B027 - most have nothing to do
        """What is to be computed before the first request. No timeout includes it."""

    @abstractmethod
    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer: ...

    @abstractmethod
    async def _tables(self, namespace: tuple[str, ...]) -> list[str]: ...


def catalogs(settings: Settings) -> dict[str, Catalog]:
    """The configured catalogs. Nothing is sent yet."""
    kinds: dict[str, type[Catalog]] = {
        "rest": RestCatalog,
        "sql": SqlCatalog,
        "glue": GlueCatalog,
        "hive": HiveCatalog,
    }
    found: dict[str, Catalog] = {}
    for name, secret in settings.catalogs.items():
        properties = {key: value.get_secret_value() for key, value in secret.items()}
        found[name] = kinds[properties["type"]](name, properties, TIMEOUT_SECONDS)
    return found


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


class SqlCatalog(Catalog):
    """The table `iceberg_tables` of Iceberg's JdbcCatalog and of pyiceberg's SqlCatalog, by Python's own drivers.

    One connection in a thread. A query that hangs keeps the thread, so later ones wait for it, and fail with their own timeouts.
    """

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._connection: Any = None
        self._mark = "?"
        self._thread = anyio.CapacityLimiter(1)

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        rows = await self._select(".".join(name.namespace), name.table)
        if not rows:
            raise AbsentFileError("there is no such table")
        pointer = str(rows[0]["metadata_location"])
        return known if known is not None and known.pointer == pointer else CatalogAnswer(pointer)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        return [str(each["table_name"]) for each in await self._select(".".join(namespace))]

    async def _select(self, namespace: str, table: str | None = None) -> list[dict[str, Any]]:
        self.requests += 1
        return await to_thread.run_sync(
            self._select_now, namespace, table, abandon_on_cancel=True, limiter=self._thread
        )

    def _select_now(self, namespace: str, table: str | None) -> list[dict[str, Any]]:
        where = ["catalog_name", "table_namespace", *(["table_name"] if table is not None else [])]
        values = [self.name, namespace, *([table] if table is not None else [])]
        try:
            if self._connection is None:
                self._connection, self._mark = self._connect()
            cursor = self._connection.cursor()
            conditions = " AND ".join(f"{each} = {self._mark}" for each in where)
            cursor.execute(f"SELECT * FROM iceberg_tables WHERE {conditions}", values)  # noqa: S608 - names of columns
            names = [each[0] for each in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            cursor.close()
        except UnreadableTableError:
            raise
        except Exception as error:  # noqa: BLE001 - each driver has errors of its own
            self._disconnect()
            raise UnreadableTableError(shorten(f"{type(error).__name__}: {error}")) from None
        return [each for each in rows if each.get("iceberg_type") in (None, "TABLE")]

    def _connect(self) -> tuple[Any, str]:
        """A connection, and its mark of a parameter. Only the driver's errors quote the URI, and without its password."""
        scheme, separator, rest = self._properties["uri"].partition("://")
        kind = scheme.partition("+")[0]
        if kind == "sqlite" and separator:
            import sqlite3

            path = rest.removeprefix("/")
            return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False), "?"
        if kind not in {"postgresql", "postgres"} or not separator:
            raise UnreadableTableError("its uri is of no known database; use postgresql://… or sqlite:////…")
        try:
            psycopg = importlib.import_module("psycopg")
        except ImportError:
            raise UnreadableTableError("PostgreSQL needs psycopg: pip install 'psycopg[binary]'") from None
        seconds = max(2, round(self._timeout))
        return psycopg.connect(
            f"postgresql://{rest}", autocommit=True, connect_timeout=seconds, tcp_user_timeout=1000 * seconds
        ), "%s"

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    async def close(self) -> None:
        if self._thread.borrowed_tokens == 0:
            self._disconnect()


class GlueCatalog(Catalog):
    """The Data Catalog of AWS Glue, with the credentials of the standard chain, or those of the properties."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._client: Any = None
        self._starting = anyio.Lock()

    async def _start(self) -> None:
        async with self._starting:
            if self._client is not None:
                return
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
            from botocore.exceptions import BotoCoreError

            given = self._properties
            config = AioConfig(
                connect_timeout=self._timeout,
                read_timeout=self._timeout,
                max_pool_connections=MAX_REQUESTS,
                retries={"total_max_attempts": 1},
            )
            session = AioSession(profile=given.get("glue.profile-name"))
            try:
                self._client = await self._open.enter_async_context(
                    session.create_client(
                        "glue",
                        region_name=given.get("glue.region") or aws_region(session),
                        endpoint_url=given.get("glue.endpoint"),
                        aws_access_key_id=given.get("glue.access-key-id"),
                        aws_secret_access_key=given.get("glue.secret-access-key"),
                        aws_session_token=given.get("glue.session-token"),
                        config=config,
                    )
                )
            except (BotoCoreError, ValueError) as error:
                raise UnreadableTableError(shorten(str(error))) from error

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        found = await self._ask("get_table", DatabaseName=".".join(name.namespace), Name=name.table)
        return _pointed(found.get("Table", {}).get("Parameters", {}), known)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        tables: list[str] = []
        more: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            found = await self._ask("get_tables", DatabaseName=".".join(namespace), **more)
            tables += [
                each["Name"]
                for each in found.get("TableList", [])
                if each.get("Parameters", {}).get("table_type", "").upper() == "ICEBERG"
            ]
            if not found.get("NextToken"):
                return tables
            more = {"NextToken": found["NextToken"]}
        raise UnreadableTableError(f"more than {MAX_PAGES:,} pages of tables")

    async def _ask(self, operation: str, **arguments: str) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        catalog = self._properties.get("glue.id")
        self.requests += 1
        try:
            found: dict[str, Any] = await getattr(self._client, operation)(
                **arguments, **({"CatalogId": catalog} if catalog else {})
            )
        except ClientError as error:
            why = error.response.get("Error", {})
            is_absent = why.get("Code") == "EntityNotFoundException"
            kind = AbsentFileError if is_absent else UnreadableTableError
            raise kind(shorten(f"Glue answers {why.get('Code')}: {why.get('Message')}")) from error
        except (BotoCoreError, OSError) as error:
            raise UnreadableTableError(shorten(str(error) or repr(error))) from error
        return found


class HiveCatalog(Catalog):
    """Hive's metastore, by its Thrift protocol. One connection, without authentication, and one call at a time."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._stream: SocketStream | None = None
        self._turn = anyio.Lock()

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        table = await self._call("get_table", ".".join(name.namespace), name.table)
        return _pointed(table.get(_PARAMETERS, {}), known)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        kind = 'hive_filter_field_params__table_type = "ICEBERG"'
        found: list[str] = await self._call("get_table_names_by_filter", ".".join(namespace), kind, -1)
        return found

    async def _call(self, method: str, *arguments: str | int) -> Any:
        async with self._turn:
            self.requests += 1
            stream, self._stream = self._stream, None  # only a whole answer leaves the connection usable
            stream = stream or await self._connect()
            try:
                await stream.send(call_of(method, *arguments))
                answer = await _thrift_answer(stream)
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, ThriftError) as error:
                await anyio.aclose_forcefully(stream)
                raise UnreadableTableError(shorten(str(error) or "the connection was closed")) from error
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise
            self._stream = stream
        if 0 in answer:
            return answer[0]
        is_absent = method == "get_table" and 2 in answer
        why = [str(each.get(1)) for each in answer.values()]
        kind = AbsentFileError if is_absent else UnreadableTableError
        raise kind(shorten(f"the metastore answers: {', '.join(why)}"))

    async def _connect(self) -> SocketStream:
        why = ""
        for uri in self._properties["uri"].split(","):
            address = urlsplit(uri.strip())
            try:
                return await anyio.connect_tcp(address.hostname or "", address.port or 9083)
            except OSError as error:
                why = str(error)
        raise UnreadableTableError(shorten(why))

    async def close(self) -> None:
        if self._stream is not None:
            await anyio.aclose_forcefully(self._stream)
            self._stream = None


_PARAMETERS = 9
"""The field of a table, in Hive's Thrift definitions."""


async def _thrift_answer(stream: SocketStream) -> dict[int, Any]:
    received = bytearray()
    while True:
        received += await stream.receive()
        try:
            return answer_of(received)
        except IncompleteError:
            if len(received) > MAX_FILE_BYTES:
                raise UnreadableTableError(f"the answer has more than {MAX_FILE_BYTES:,} bytes") from None


def _pointed(parameters: Mapping[str, str], known: CatalogAnswer | None) -> CatalogAnswer:
    pointer = parameters.get("metadata_location")
    if pointer is None:
        raise UnreadableTableError("it is not an Iceberg table: its parameter metadata_location is absent")
    return known if known is not None and known.pointer == pointer else CatalogAnswer(pointer)
