"""Google Cloud Storage and Azure Blob, through obstore: one conditional request a call, every answer an outcome.

What the answers mean is in `classify.py`; here is only how obstore delivers them.

- **Conditions.** Google compares a generation (`x-goog-if-generation-match`, 0 for "nothing there"), Azure an ETag
  (`If-None-Match: *`, `If-Match`). Either is the version that reads and writes return. Neither ever repeats.
- **Answers.** obstore raises for whatever isn't 2xx and exposes no status: it is in the message. It counts only where
  the message is about our own request, and not about one for credentials. Anything else is no answer, so *unknown*: a
  message that reads differently after an upgrade can make the lock read back, it can't make it lose or win.
- **Once.** `max_retries` is 0. Redirects are followed by the HTTP client below, which nobody can turn off: a GET, and
  after a 303 also a PUT (as a GET). So a 2xx counts only with a version of the form that the cloud writes, and a write
  only with another version than the one it was to replace; otherwise it is *unknown* and read back.
- **Late.** The request runs in another thread. Giving up on it closes its connection and doesn't call it back: a
  write may land after the timeout or the cancellation, as on any store. It is *unknown*.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, assert_never
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import obstore
import structlog
from anyio import AsyncContextManagerMixin
from obstore.exceptions import BaseError, GenericError
from obstore.store import AzureStore, GCSStore

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.agent.stores.locations import LocationError, parse_location, scheme_of
from lakewarden.agent.stores.port import (
    MAX_OBJECT_BYTES,
    require_probe_key,
    require_timeout,
    shorten,
    too_long,
)
from lakewarden.handlers.lease.conditional import (
    Condition,
    IfAbsent,
    IfMatch,
    ReadOutcome,
    Refused,
    WriteOutcome,
)

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, RetryConfig

log = structlog.get_logger(__name__)

_Client: TypeAlias = GCSStore | AzureStore

_DEBUG: Final = "\n\nDebug source:\n"
_STATUS_ERROR: Final = re.compile(
    r"(?P<before>.*)Error performing (?:GET|PUT) \S+ in \S+ - "
    r"Server returned non-2xx status code: (?P<status>\d{3})[^:]*: (?P<body>.*)",
    re.DOTALL,
)
_GENERIC: Final = re.compile(r"Generic \w+ error: ")
_NO_CREDENTIALS: Final = re.compile(
    r"Generic \w+ error: .{0,40}(token re(quest|sponse)|federated token|az account|azure cli)"
)
_S3_CODES: Final = {"BlobAlreadyExists": "PreconditionFailed", "ServerBusy": "SlowDown"}
"""Azure's names for what the table of `classify.py` goes by; where it goes by the status, a name makes no difference.
The first comes with 409, and isn't what other 409s say, that two writes met: the condition of if-absent did not hold."""
_UNSENDABLE: Final = "HTTP error: builder error"
_CODE: Final = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_MESSAGE: Final = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cloud:
    """What differs between the two."""

    authority: re.Pattern[str]
    spelling: str
    version: Literal["version", "e_tag"]
    """Where obstore puts what a later condition needs."""
    form: re.Pattern[str]
    credentials: str
    """Where they are looked for first, for whoever has none."""


_GOOGLE: Final = _Cloud(
    authority=re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    spelling="gs://bucket/key",
    version="version",
    form=re.compile(r"\d{1,20}"),
    credentials="GOOGLE_APPLICATION_CREDENTIALS, or run with a service account",
)
_AZURE: Final = _Cloud(
    authority=re.compile(r"[a-z0-9][a-z0-9-]{2,62}(@[a-z0-9]{3,24}\.(dfs|blob)\.core\.windows\.net)?"),
    spelling="az://container/key or abfs://container@account.dfs.core.windows.net/key",
    version="e_tag",
    form=re.compile(r'"?0x[0-9A-Fa-f]{1,32}"?'),
    credentials="AZURE_STORAGE_ACCOUNT_NAME and a key (AZURE_STORAGE_ACCOUNT_KEY), or run with a managed or workload identity",
)
_CLOUDS: Final = {"gs": _GOOGLE, "az": _AZURE, "abfs": _AZURE}


class CloudStore(AsyncContextManagerMixin):
    """Objects of the bucket or container that `uri` lies in. Credentials come from the cloud's standard chain."""

    def __init__(self, uri: str, *, request_timeout_seconds: float, endpoint: str | None = None) -> None:
        self._timeout = require_timeout(request_timeout_seconds)
        self._endpoint = None if endpoint is None else _require_endpoint(endpoint)
        self._scheme = scheme_of(uri)
        self._authority = uri.partition("://")[2].partition("/")[0]
        self._cloud = _CLOUDS[self._scheme]
        if not self._cloud.authority.fullmatch(self._authority):
            raise LocationError(f"an object is written {self._cloud.spelling}: uri={uri!r}")
        self._client: _Client | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        try:
            self._client = self._connect()
        except BaseError as error:
            said = shorten(str(error).partition(_DEBUG)[0])
            raise ValueError(f"{said}; set {self._cloud.credentials}") from error
        try:
            yield self
        finally:
            self._client = None

    async def read(self, uri: str) -> ReadOutcome:
        """Body and version of one GET."""
        key = self._locate(uri)
        if isinstance(key, Refused):
            return key
        return classify_read(await self._request(lambda store: self._get(store, key)))

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """One PUT under the condition."""
        key = self._locate(uri)
        if isinstance(key, Refused):
            return key
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        return classify_write(
            await self._request(lambda store: self._put(store, key, body, condition)), condition
        )

    async def delete(self, uri: str) -> None:
        """Remove a probe's key; a store that forbids it keeps a few bytes."""
        require_probe_key(uri)
        key = self._locate(uri)
        if isinstance(key, Refused):
            why = key.why
        else:
            answer = await self._request(lambda store: _remove(store, key))
            if answer.status == 200:
                return
            why = answer.summary
        log.warning("store.probe_key_left_behind", uri=uri, why=why)

    def _connect(self) -> _Client:
        endpoint = self._endpoint
        options: ClientConfig = {
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": timedelta(seconds=self._timeout),
            # Half the budget, so that an endpoint that isn't there is told apart from one that is slow.
            "connect_timeout": timedelta(seconds=self._timeout / 2),
        }
        # Every attempt must be the lock's own: a hidden retry meets its own first write as a 412.
        retry: RetryConfig = {"max_retries": 0}
        if self._cloud is _GOOGLE:
            return GCSStore(
                self._authority,
                config={"base_url": endpoint} if endpoint else {},
                client_options=options,
                retry_config=retry,
            )
        return AzureStore.from_url(
            f"{self._scheme}://{self._authority}",
            # The emulator is an endpoint like any other; the switch for it would allow http whatever the endpoint.
            config={"use_emulator": False, "endpoint": endpoint} if endpoint else {"use_emulator": False},
            client_options=options,
            retry_config=retry,
        )

    async def _request(self, request: Callable[[_Client], Awaitable[Answer]]) -> Answer:
        if self._client is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        # obstore bounds each of its requests by itself, but a call may begin with some for credentials.
        with anyio.move_on_after(self._timeout):
            # obstore sends when it is called, not when it is awaited.
            await anyio.lowlevel.checkpoint_if_cancelled()
            try:
                return await request(self._client)
            except (BaseError, OSError, NotImplementedError) as error:
                return self._answer_from_error(error)
        return Answer(
            fault="no answer",
            message=f"credentials or an answer did not come in time: request_timeout_seconds={self._timeout:g}",
        )

    async def _put(self, client: _Client, key: str, body: bytes, condition: Condition) -> Answer:
        mode: PutMode
        match condition:
            case IfAbsent():
                mode = "create"
            case IfMatch(version=version):
                # Each client takes the one that its cloud compares.
                mode = {"e_tag": version, "version": version}
            case _:
                assert_never(condition)
        result = await obstore.put_async(
            client, key, body, mode=mode, attributes={"Content-Type": "application/json"}
        )
        return self._success(result[self._cloud.version])

    async def _get(self, client: _Client, key: str) -> Answer:
        result = await obstore.get_async(client, key)
        if (size := result.meta["size"]) > MAX_OBJECT_BYTES:
            return Answer(fault="too long", message=too_long(size))
        return self._success(result.meta[self._cloud.version], bytes(await result.bytes_async()))

    def _success(self, version: str | None, body: bytes = b"") -> Answer:
        if version is None or not self._cloud.form.fullmatch(version):
            return Answer(200, message=f"nothing that this cloud writes as a version: {version!r}")
        return Answer(200, version=version, body=body)

    def _answer_from_error(self, error: Exception) -> Answer:
        """obstore's exception back into the answer it was made of, if it was made of one."""
        text = str(error).partition(_DEBUG)[0]
        if _NO_CREDENTIALS.match(text):
            return Answer(fault="no answer", message=f"no credentials; set {self._cloud.credentials}: {text}")
        if text.endswith(_UNSENDABLE):
            hint = "is that an endpoint without TLS? name it in the agent's settings, gcs_endpoint or azure_endpoint"
            return Answer(fault="not sent", message=f"{hint}: {text}")
        found = _STATUS_ERROR.fullmatch(text)
        # A type of its own (not found, precondition, …) is given to nothing but an answer; any failure may be generic.
        if found is None or (type(error) is GenericError and not _GENERIC.fullmatch(found["before"])):
            return Answer(fault="no answer", message=f"{type(error).__name__}: {text}")
        status, code, message = (
            int(found["status"]),
            _CODE.search(found["body"]),
            _MESSAGE.search(found["body"]),
        )
        said = message[1] if message else found["body"]
        if code is None:
            # Both clouds name what is missing; a 404 that doesn't is a page of something in between.
            return Answer(status, message=said, fault="not the store" if status == 404 else None)
        return Answer(status, _S3_CODES.get(code[1], code[1]), f"{code[1]}: {said}")

    def _locate(self, uri: str) -> str | Refused:
        try:
            location = parse_location(uri)
        except LocationError as error:
            return Refused(str(error))
        if (location.scheme, location.authority) != (self._scheme, self._authority):
            return Refused(f"not in the store that is open, {self._scheme}://{self._authority}: uri={uri!r}")
        return location.key


async def _remove(client: _Client, key: str) -> Answer:
    with suppress(FileNotFoundError):
        await obstore.delete_async(client, key)
    return Answer(200)


def _require_endpoint(endpoint: str) -> str:
    """obstore panics on some of what isn't a URL."""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise LocationError(f"an endpoint is written https://host[:port][/path]: endpoint={endpoint!r}")
    return endpoint.rstrip("/")
