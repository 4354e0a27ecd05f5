"""Google Cloud Storage and Azure Blob through obstore: each call sends one conditional request and returns an outcome.

`store_answers.py` defines what an answer means. This module translates between obstore and `Answer`:

- **Conditions.** Google compares a generation (`x-goog-if-generation-match`, 0 for "absent"), Azure an ETag
  (`If-None-Match: *`, `If-Match`). Reads and writes return this version, which never repeats.
- **One request.** `max_retries` is 0. The HTTP client below obstore follows redirects, and this can't be turned off: a GET,
  and after a 303 also a PUT (as a GET). Therefore a 2xx counts only with a version in the cloud's own form, and for a write
  only if it differs from the version to be replaced. Otherwise the outcome is *unknown*, and the lock reads back.
- **Late writes.** The request runs in another thread. A timeout or a cancellation closes the connection, but can't recall
  the request: the write may still be applied afterwards, as on any store. The outcome is *unknown*.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, assert_never

import anyio
import anyio.lowlevel
import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from lakewarden.agent.stores import port
from lakewarden.agent.stores.locations import Location, LocationError, scheme_of
from lakewarden.events.access.google import google_client
from lakewarden.handlers.lease import conditional
from lakewarden.handlers.lease.store_answers import (
    Answer,
    classify_read,
    classify_write,
    error_text,
    obstore_answer,
    shorten,
)

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, GCSConfig, RetryConfig

_Client: TypeAlias = GCSStore | AzureStore

_ENDPOINT: Final = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(/[A-Za-z0-9._~%/-]*)?"
)
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cloud:
    """The differences between the two clouds."""

    authority: re.Pattern[str]
    uri_form: str
    """For error messages."""
    version: Literal["version", "e_tag"]
    """The key of obstore's result that holds the version for a later condition."""
    version_form: re.Pattern[str]
    seconds_between_writes: float
    """Google accepts about one write a second to one object."""
    files: tuple[str, ...]
    """Variables that name a file of credentials."""
    credentials: str
    """What to set where credentials are missing, for error messages."""


_GOOGLE: Final = _Cloud(
    authority=re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    uri_form="gs://bucket/key",
    version="version",
    version_form=re.compile(r"\d{1,20}"),
    seconds_between_writes=1.1,
    files=("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    credentials="GOOGLE_APPLICATION_CREDENTIALS, or run with a service account",
)
_AZURE: Final = _Cloud(
    authority=re.compile(r"[a-z0-9][a-z0-9-]{2,62}(@[a-z0-9]{3,24}\.(dfs|blob)\.core\.windows\.net)?"),
    uri_form="az://container/key or abfs://container@account.dfs.core.windows.net/key",
    version="e_tag",
    version_form=re.compile(r'"?0x[0-9A-Fa-f]{1,32}"?'),
    seconds_between_writes=0.0,
    files=("AZURE_FEDERATED_TOKEN_FILE",),
    credentials="AZURE_STORAGE_ACCOUNT_NAME and a key (AZURE_STORAGE_ACCOUNT_KEY), or run with a managed or workload identity",
)
_CLOUDS: Final = {"gs": _GOOGLE, "az": _AZURE, "abfs": _AZURE}


class CloudStore(port.LocatingStore[str]):
    """The bucket or container of `uri`. Credentials come from the cloud's standard chain."""

    def __init__(self, uri: str, *, request_timeout_seconds: float, endpoint: str | None = None) -> None:
        self._timeout = port.require_timeout(request_timeout_seconds)
        self._endpoint = None if endpoint is None else require_endpoint(endpoint)
        self._scheme = scheme_of(uri)
        self._authority = uri.partition("://")[2].partition("/")[0]
        self._cloud = _CLOUDS[self._scheme]
        self.seconds_between_writes = self._cloud.seconds_between_writes
        if not self._cloud.authority.fullmatch(self._authority):
            raise LocationError(f"an object's URI has the form {self._cloud.uri_form}: uri={uri!r}")
        self._client: _Client | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            self._client = self._connect()
        except BaseError as error:
            files = self._files()
            other = f", or unset {' and '.join(files)}" if files else ""
            raise ValueError(f"{shorten(error_text(error))}; {self._hint()}{other}") from error
        try:
            yield self
        finally:
            self._client = None

    async def _read(self, key: str) -> conditional.ReadOutcome:
        return classify_read(await self._request(lambda store: self._get(store, key)))

    async def _write(
        self, key: str, body: bytes, condition: conditional.Condition
    ) -> conditional.WriteOutcome:
        return classify_write(
            await self._request(lambda store: self._put(store, key, body, condition)), condition
        )

    async def _remove(self, key: str) -> str | None:
        answer = await self._request(lambda store: _remove(store, key))
        return None if answer.status == 200 else answer.summary

    def _connect(self) -> _Client:
        endpoint = self._endpoint
        options: ClientConfig = {
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": timedelta(seconds=self._timeout),
            # Half the timeout, so that the error distinguishes an unreachable endpoint from a slow one.
            "connect_timeout": timedelta(seconds=self._timeout / 2),
        }
        return cloud_client(self._scheme, self._authority, endpoint, options)

    def _connected_again(self) -> _Client | None:
        """A client that has read the files of the credentials again, or the one that there is."""
        with suppress(BaseError, ValueError):
            return self._connect()
        return self._client

    def _hint(self) -> str:
        files = [f"{name}={path}" for name, path in self._files().items()]
        return f"check {' and '.join(files)}" if files else f"set {self._cloud.credentials}"

    def _files(self) -> dict[str, str]:
        """The files of credentials that the environment names."""
        return {name: os.environ[name] for name in self._cloud.files if os.environ.get(name)}

    async def _request(self, request: Callable[[_Client], Awaitable[Answer]]) -> Answer:
        if self._client is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        # obstore limits each of its requests, but a call may first send requests for credentials.
        with anyio.move_on_after(self._timeout):
            # obstore sends the request when it is called, not when it is awaited.
            await anyio.lowlevel.checkpoint_if_cancelled()
            try:
                return await request(self._client)
            except (BaseError, OSError, NotImplementedError) as error:
                return self._answer_from_error(error)
        return Answer(
            fault="no answer",
            message=f"no credentials or no answer within the timeout: request_timeout_seconds={self._timeout:g}",
        )

    async def _put(self, client: _Client, key: str, body: bytes, condition: conditional.Condition) -> Answer:
        mode: PutMode
        match condition:
            case conditional.IfAbsent():
                mode = "create"
            case conditional.IfMatch(version=version):
                # Each client uses the one that its cloud compares.
                mode = {"e_tag": version, "version": version}
            case _:
                assert_never(condition)
        result = await obstore.put_async(
            client, key, body, mode=mode, attributes={"Content-Type": "application/json"}
        )
        if self._cloud is _AZURE:
            self.keeps_versions = result["version"] is not None
        return self._success(result[self._cloud.version])

    async def _get(self, client: _Client, key: str) -> Answer:
        result = await obstore.get_async(client, key)
        if (size := result.meta["size"]) > port.MAX_OBJECT_BYTES:
            return Answer(fault="too long", message=port.too_long(size))
        return self._success(result.meta[self._cloud.version], bytes(await result.bytes_async()))

    def _success(self, version: str | None, body: bytes = b"") -> Answer:
        if version is None or not self._cloud.version_form.fullmatch(version):
            return Answer(200, message=f"not a version of this cloud: {version!r}")
        return Answer(200, version=version, body=body)

    def _answer_from_error(self, error: Exception) -> Answer:
        answer = obstore_answer(error)
        if answer.rejects_credentials:
            self._client = self._connected_again()
        if answer.fault == "no credentials":
            return replace(answer, message=f"no credentials; {self._hint()}: {answer.message}")
        if answer.fault == "not sent":
            hint = (
                "the request was not sent; if the endpoint has no TLS, set it in the agent's settings "
                "gcs_endpoint or azure_endpoint"
            )
            return replace(answer, message=f"{hint}: {answer.message}")
        return answer

    def _key_of(self, location: Location, uri: str) -> str | conditional.Refused:
        if (location.scheme, location.authority) != (self._scheme, self._authority):
            return conditional.Refused(
                f"the object is not in the open store {self._scheme}://{self._authority}: uri={uri!r}",
                unusable=True,
            )
        return location.key


def cloud_client(scheme: str, authority: str, endpoint: str | None, options: ClientConfig) -> _Client:
    """The client of a bucket (`gs`) or a container (`az`, `abfs`). It repeats no request.

    A hidden retry would get a 412 for the write of its own first attempt.
    """
    once: RetryConfig = {"max_retries": 0}
    endpoint = None if endpoint is None else require_endpoint(endpoint)
    if scheme == "gs":
        google: GCSConfig = {"base_url": endpoint} if endpoint else {}
        connect = partial(GCSStore, authority, config=google, client_options=options, retry_config=once)
        client: GCSStore = google_client(connect)
        return client
    # An emulator is used as an ordinary endpoint: `use_emulator` would allow HTTP for every endpoint.
    config: Any = {"use_emulator": False, **({"endpoint": endpoint} if endpoint else {})}
    return AzureStore.from_url(
        f"{scheme}://{authority}", config=config, client_options=options, retry_config=once
    )


async def _remove(client: _Client, key: str) -> Answer:
    with suppress(FileNotFoundError):
        await obstore.delete_async(client, key)
    return Answer(200)


def require_endpoint(endpoint: str) -> str:
    """Check the endpoint here, because obstore panics on some invalid URLs."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        raise LocationError(f"an endpoint has the form https://host[:port][/path]: endpoint={endpoint!r}")
    return endpoint.rstrip("/")
