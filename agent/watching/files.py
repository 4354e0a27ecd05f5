"""Lists and reads the files of tables, through obstore: local disk, S3, Google Cloud Storage, Azure. It never writes.

- One client per bucket or container. Credentials come from each cloud's standard chain; for S3 from that of botocore, as for the
  agent's locks.
- obstore repeats no request: a watcher looks again a second later anyway.
- Every failure is an `UnreadableTableError` with a readable text. A listing is whole or an error, never a part.
- A listing of S3 has pages of 1,000 names. The timeout is that of one page.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio
import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores.cloud import cloud_client, require_endpoint
from lakewarden.agent.stores.locations import DEFAULT_REGION, aws_region, parse_location, s3_endpoint
from lakewarden.events import object_uri
from lakewarden.handlers.lease.store_answers import error_text, obstore_answer, shorten, shows_no_object
from lakewarden.handlers.observations import File

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Limit of one file that is read. A commit of 100,000 files has metadata of about 60 MB."""
TIMEOUT_SECONDS = 10.0
"""Timeout of one page of a listing, or of one read. S3 answers a listing of 1,000 names in less than a second."""
LISTING_SECONDS = 300.0
"""Timeout of a listing that obstore does as a whole. Each of its pages has the client's timeout."""
MAX_FILES = 300_000
"""Files of one listing that is kept. A write with direct markers has one file for each data file."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""What a request can have as a bucket or a region."""

_Store: TypeAlias = S3Store | GCSStore | AzureStore | LocalStore
_Result = TypeVar("_Result")


class UnreadableTableError(AgentError):
    """A listing or a read has failed. The watcher tries again in its next round."""


class AbsentFileError(UnreadableTableError):
    """The file is not there."""


class TableFiles:
    """The files below one table. Paths are relative to the table's root."""

    connect: Callable[[], _Store] | None = None
    """Makes another client, which reads the files of the credentials again."""

    def __init__(self, store: _Store, root: str, timeout: float, *, seeks: bool = False) -> None:
        self._store, self._root, self._timeout = store, root, timeout
        self.seeks = seeks
        """Whether a listing is in alphabetical order, and can begin anywhere."""
        self.requests = 0
        """How many pages and files were requested. A listing of one folder counts once."""

    async def folder(self, path: str) -> dict[str, File]:
        async def listed() -> list[Any]:
            found = await obstore.list_with_delimiter_async(self._store, self._root + path.rstrip("/"))
            return list(found["objects"])

        return self._files(await self._request(listed, LISTING_SECONDS))

    async def below(self, path: str, after: str | None = None) -> dict[str, File]:
        """The files below a folder. `after`: those whose paths follow it, in alphabetical order."""
        found: dict[str, File] = {}
        async for page in self.pages(path, after):
            found |= page
            if len(found) > MAX_FILES:
                raise UnreadableTableError(f"more than {MAX_FILES:,} files below {path}")
        return found

    async def pages(self, path: str, after: str | None = None) -> AsyncIterator[dict[str, File]]:
        """Yield what `below` returns, page by page, so that only the caller keeps it."""
        offset = None if after is None else self._root + after
        found: Any = None

        async def page() -> list[Any]:
            nonlocal found
            if found is None:
                prefix = self._root + path.rstrip("/")
                found = aiter(obstore.list(self._store, prefix, offset=offset, chunk_size=1_000))
            try:
                return list(await found.__anext__())  # `anext` with a default fails on it
            except StopAsyncIteration:
                return []

        while listed := await self._request(page):
            yield self._files(listed)

    async def pages_of_folder(self, path: str, after: str | None = None) -> AsyncIterator[dict[str, File]]:
        """Yield the files in a folder page by page. Where the store seeks, the listing leaves out what is in folders below."""
        prefix = f"{path.rstrip('/')}/" if path else ""
        while True:
            nested = ""
            async for page in self.pages(path, after):
                yield {name: file for name, file in page.items() if "/" not in name[len(prefix) :]}
                folder, slash, _ = next(reversed(page))[len(prefix) :].partition("/")
                if slash and self.seeks:
                    nested = prefix + folder
                    break
            if not nested:
                return
            after = nested + "0"  # the character after a slash

    async def folders(self, path: str) -> list[str]:
        async def listed() -> list[str]:
            found = await obstore.list_with_delimiter_async(
                self._store, (self._root + path.rstrip("/")).rstrip("/")
            )
            return [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

        return await self._request(listed, LISTING_SECONDS)

    async def has_files(self, path: str) -> bool:
        """Return whether a folder has files, at any depth. It costs one page, whatever is beside it."""
        async for page in self.pages(path):
            return bool(page)
        return False

    async def read(self, path: str) -> bytes:
        return (await self.read_with_time(path))[0]

    async def read_with_time(self, path: str) -> tuple[bytes, float]:
        """The content of a file, and when it was written, by the store's clock."""

        async def got() -> tuple[bytes, float]:
            found = await obstore.get_async(self._store, self._root + path)
            if found.meta["size"] > MAX_FILE_BYTES:
                raise UnreadableTableError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
            return bytes(await found.bytes_async()), found.meta["last_modified"].timestamp()

        return await self._request(got)

    def _files(self, found: list[Any]) -> dict[str, File]:
        files: dict[str, File] = {}
        for each in found:
            path = each["path"].removeprefix(self._root)
            modified = each["last_modified"].timestamp()
            files[path] = File(path, each["size"], each["e_tag"] or f"{modified}:{each['size']}", modified)
        return files

    async def _request(
        self, request: Callable[[], Awaitable[_Result]], timeout: float | None = None
    ) -> _Result:
        self.requests += 1
        timeout = self._timeout if timeout is None else timeout
        try:
            with anyio.fail_after(timeout):
                return await request()
        except FileNotFoundError as error:
            absent = AbsentFileError if shows_no_object(error) else UnreadableTableError
            raise absent(_why(error)) from error
        except TimeoutError as error:
            raise UnreadableTableError(f"no answer within {timeout:g} s") from error
        except (
            BaseError,
            OSError,
            NotImplementedError,
            ValueError,
        ) as error:  # a path that no store can have
            if self.connect is not None and obstore_answer(error).rejects_credentials:
                with suppress(BaseError, ValueError):
                    self._store = self.connect()
            raise UnreadableTableError(_why(error)) from error


class Buckets:
    """The clients of all buckets, made when they are first used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stores: dict[str, _Store] = {}

    @cached_property
    def _s3_endpoint(self) -> str | None:
        with aws_configured():
            return self._settings.s3_endpoint or s3_endpoint()

    def table(self, uri: str, access: Mapping[str, str] | None = None) -> TableFiles:
        """The files of a table, or of a folder of tables. Raises `AgentError` if the URI names none, or has no credentials.

        `access`: credentials for this table, as Iceberg's properties of S3. They expire, so no client is kept for them.
        """
        location = parse_location(object_uri(uri))
        bucket = f"{location.scheme}://{location.authority}"
        try:
            if access and location.scheme == "s3":
                store: _Store = _vended_s3(
                    location.authority, access, access.get("s3.endpoint") or self._s3_endpoint
                )
            else:
                store = self._stores.get(bucket) or self._connect_again(bucket)
        except (BaseError, ValueError) as error:
            raise UnreadableTableError(_why(error)) from error
        seeks = location.scheme in ("s3", "gs")
        files = TableFiles(store, location.key + "/", TIMEOUT_SECONDS, seeks=seeks)
        if not access:
            files.connect = partial(self._connect_again, bucket)
        return files

    def _connect_again(self, bucket: str) -> _Store:
        """Make a client, which is that of later tables, too."""
        scheme, _, authority = bucket.partition("://")
        self._stores[bucket] = self._connect(scheme, authority)
        return self._stores[bucket]

    def _connect(self, scheme: str, authority: str) -> _Store:
        settings = self._settings
        endpoint = settings.gcs_endpoint if scheme == "gs" else settings.azure_endpoint
        match scheme:
            case "file":
                return LocalStore()
            case "s3":
                return self._s3(authority)
            case "gs" | "az" | "abfs":
                return cloud_client(scheme, authority, endpoint, _options(endpoint))
            case _:
                raise ValueError(f"tables of {scheme}:// can't be watched; use file, s3, gs, az or abfs")

    def _s3(self, bucket: str) -> S3Store:
        # Imported here because it takes half a second, which tables elsewhere don't need.
        from aiobotocore.credentials import AioCredentials
        from aiobotocore.session import AioSession

        from lakewarden.agent.stores.s3 import NO_CREDENTIALS, S3Options

        session = AioSession()
        given = S3Options.of(self._settings)
        endpoint = self._s3_endpoint
        path_style = bool(endpoint) if given.path_style is None else given.path_style

        async def credentials() -> S3Credential:
            nonlocal session
            with aws_configured():
                found = await session.get_credentials()
                if found is None or type(found) is AioCredentials:
                    session = AioSession()  # their file is read again the next time
                if found is None:
                    raise UnreadableTableError(NO_CREDENTIALS)
                frozen = await found.get_frozen_credentials()
            made: S3Credential = {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                # botocore renews what expires; asking it again every minute costs nothing.
                "expires_at": datetime.now(UTC) + timedelta(minutes=6),
            }
            return made

        with aws_configured():
            region = aws_region(session)
        more = {"request_payer": given.requester_pays}
        return _s3_store(
            bucket, endpoint, region, more, path_style=path_style, credential_provider=credentials
        )


@contextmanager
def aws_configured() -> Iterator[None]:
    """Raise an error of AWS's configuration, or of its credentials, as `UnreadableTableError`."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        raise UnreadableTableError(f"check credentials, region and endpoint of AWS: {error}") from error


def _vended_s3(bucket: str, access: Mapping[str, str], endpoint: str | None) -> S3Store:
    path_style = access.get("s3.path-style-access", str(bool(endpoint))).lower() == "true"
    given = {
        "access_key_id": access["s3.access-key-id"],
        "secret_access_key": access.get("s3.secret-access-key", ""),
        **({"session_token": access["s3.session-token"]} if "s3.session-token" in access else {}),
    }
    if not all(each.isascii() and each.isprintable() for each in given.values()):
        raise ValueError("the catalog's credentials have characters that no request can have")
    return _s3_store(bucket, endpoint, access.get("client.region"), given, path_style=path_style)


def _s3_store(
    bucket: str,
    endpoint: str | None,
    region: str | None,
    more: Mapping[str, Any],
    *,
    path_style: bool,
    **options: Any,
) -> S3Store:
    """Raises `ValueError` for what obstore would panic of when it makes a request, which can end the process."""
    for what, name in (("bucket", bucket), ("region of S3", region or DEFAULT_REGION)):
        if not _NAME.fullmatch(name):
            raise ValueError(f"not the name of a {what}: {name!r}")
    config: Any = {
        "region": region or DEFAULT_REGION,
        "virtual_hosted_style_request": not path_style,
        **more,
        **({"endpoint": require_endpoint(endpoint)} if endpoint else {}),
    }
    return S3Store(
        bucket, config=config, client_options=_options(endpoint), retry_config={"max_retries": 0}, **options
    )


def _options(endpoint: str | None) -> ClientConfig:
    return {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "timeout": timedelta(seconds=TIMEOUT_SECONDS),
    }


def _why(error: BaseException) -> str:
    """The error on one line, without the parts for developers of obstore."""
    return shorten(error_text(error))
