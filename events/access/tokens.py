"""Access tokens for OAUTHBEARER.

**Client credentials** (`oauth_token_url`, `oauth_client_id`, `oauth_client_secret_file`, `oauth_scope`): a token endpoint issues
tokens (RFC 6749). One token serves all connections until a fifth of its lifetime is left.

**A provider** (`oauth_token_provider`) is `module:function`, called at each connect, in a thread, without arguments or
with those after `?` (`?region=eu-central-1`). The function, which may be a coroutine function, returns the token, or
a tuple that begins with it, as the signer of Amazon MSK does. An object whose method `token` does so (aiokafka's
`AbstractTokenProvider`) will also do; that object is made once.

**A file** (`oauth_token_file`) with a token is read at each connect. Another program renews it.

**Extensions** (`oauth_extensions`) are sent with each token, with those of a provider object's method `extensions`.

**A source that hangs delays only the connects to Kafka.** Each call has a thread of its own, which the event loop's other users
don't share, and connects that come during a call wait for the same one. After `TOKEN_SECONDS` they fail; the thread goes on, and
the next connect makes another call, up to `MAX_CALLS`.

**Every failure is a `TokenError`** with its cause in words. aiokafka treats it like a connection that failed: it retries.
"""

import asyncio
import base64
import functools
import importlib
import inspect
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from lakewarden.events.access.files import authorities, read_secret
from lakewarden.events.access.options import Access, AccessError, wrong_extension
from lakewarden.events.codec import json_object

REQUEST_SECONDS = 10.0
"""For each step of a request to the token endpoint."""
TOKEN_SECONDS = 20.0
"""For a token, from any source. Shorter than a client's own timeouts, so that the cause is reported."""
MAX_CALLS = 5
"""Calls of one source that run at the same time: all but the last one hang."""
DEFAULT_LIFETIME_SECONDS = 300.0
"""Lifetime of a token whose endpoint doesn't say how long it lives."""
RENEW_SHARE = 0.2
"""Share of a token's lifetime. While less than this is left, each connect requests a new one."""
MAX_ANSWER_BYTES = 1_000_000
MAX_WHY = 200
"""Characters of a failure's own text."""
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""The form of a bearer token (RFC 6750). Anything else could change the SASL message."""


class TokenError(KafkaError):  # type: ignore[misc]
    """There is no access token. The message says why."""

    def __str__(self) -> str:
        """The message alone. aiokafka's base class puts its name before it."""
        return str(self.args[0]) if self.args else "no access token"


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """What aiokafka calls at each connect. `problem` is why it got no token the last time, or None."""

    def __init__(
        self, source: Callable[[], Any], name: str, extensions: Mapping[str, str] | None = None
    ) -> None:
        self._source = _Calls(source)
        self._name = name
        self._extensions = extensions or {}
        self._made: Any = None
        self._made_tokens: _Calls | None = None
        self.problem: str | None = None

    async def token(self) -> str:
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                found = await self._find()
            self.problem = None
            return _checked(found, self._name)
        except TokenError as error:
            self.problem = str(error)
            raise
        except TimeoutError:
            self.problem = f"no access token from {self._name} within {TOKEN_SECONDS:g} s"
            raise TokenError(self.problem) from None
        except Exception as error:
            why = " ".join(str(error).split())[:MAX_WHY]
            self.problem = f"no access token from {self._name}: {type(error).__name__}: {why}"
            raise TokenError(self.problem) from error

    def extensions(self) -> dict[str, str]:
        """Those of the options, and the provider's own, if it is an object that has some. aiokafka calls it after `token`."""
        own: dict[str, str] = {}
        try:
            if hasattr(self._made, "extensions"):
                own = dict(self._made.extensions() or {})
            wrong = wrong_extension(own)
        except Exception as error:  # noqa: BLE001 - the code is the user's
            wrong = f"its extensions: {type(error).__name__}: {' '.join(str(error).split())[:MAX_WHY]}"
        if wrong:
            self.problem = f"{self._name}: {wrong}"
            raise TokenError(self.problem)
        return {**own, **self._extensions}

    async def _find(self) -> Any:
        if self._made_tokens is None:
            found = await self._source.result()
            if not hasattr(found, "token"):
                return found
            if self._made_tokens is None:
                self._made, self._made_tokens = found, _Calls(found.token)
        return await self._made_tokens.result()


@functools.lru_cache(maxsize=16)
def tokens(access: Access) -> Tokens:
    """The source of tokens that the options name. The clients of a process with the same options share it, and its token."""
    if access.oauth_token_provider is not None:
        name = access.oauth_token_provider.partition("?")[0]
        return Tokens(_provider(access.oauth_token_provider), name, access.extensions)
    if access.oauth_token_file is not None:
        path = access.oauth_token_file
        return Tokens(lambda: read_secret("oauth_token_file", path).strip(), path, access.extensions)
    return Tokens(ClientCredentials(access).token, f"{access.oauth_token_url}", access.extensions)


def guarded_provider(provider: Any) -> Tokens:
    """A provider of the caller's own, whose errors become `TokenError`s."""
    return provider if isinstance(provider, Tokens) else Tokens(lambda: provider, type(provider).__name__)


class ClientCredentials:
    """Tokens from a token endpoint. The client's secret is read from its file for each request. Thread-safe."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = self._expires_at = float("-inf")

    def token(self) -> str:
        """The current token, or a new one. While the endpoint doesn't answer, a token that is still valid is used."""
        with self._lock:
            now = self._clock()
            if now >= self._renew_at:
                try:
                    self._token, lifetime = self._request()
                except (TokenError, AccessError):
                    if now >= self._expires_at:
                        raise
                else:
                    # Counted from before the request, so never longer than the endpoint means it.
                    self._expires_at = now + lifetime
                    self._renew_at = now + lifetime * (1 - RENEW_SHARE)
            return self._token

    def _request(self) -> tuple[str, float]:
        access = self._access
        assert access.oauth_token_url is not None, "checked with the options"
        assert access.oauth_client_secret_file is not None, "checked with the options"
        secret = read_secret("oauth_client_secret_file", access.oauth_client_secret_file)
        user = f"{quote_plus(access.oauth_client_id or '')}:{quote_plus(secret)}"
        form = {"grant_type": "client_credentials"}
        if access.oauth_scope:
            form["scope"] = access.oauth_scope
        request = urllib.request.Request(  # noqa: S310 - https, or http to this machine, checked with the options
            access.oauth_token_url,
            data=urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        opener = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=authorities(access.oauth_cafile, "oauth_cafile"))
        )
        try:
            with opener.open(request, timeout=REQUEST_SECONDS) as answer:
                return token_of(answer.read(MAX_ANSWER_BYTES), access.oauth_token_url)
        except urllib.error.HTTPError as error:
            with error:
                why = error_code(error.read(MAX_ANSWER_BYTES))
            raise TokenError(
                f"the token endpoint {access.oauth_token_url} answers {error.code}{why}; check oauth_client_id, "
                "oauth_client_secret_file and oauth_scope"
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise TokenError(
                f"the token endpoint {access.oauth_token_url} can't be reached: {reason}; check oauth_token_url and the network"
            ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the client's secret to another place."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def token_of(answer: bytes, url: str) -> tuple[str, float]:
    """The token and its lifetime in seconds."""
    try:
        found = json.loads(answer)
        token, lifetime = found["access_token"], float(found.get("expires_in", DEFAULT_LIFETIME_SECONDS))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TokenError(f"the answer of the token endpoint {url} has no access_token") from None
    return _checked(token, url), max(lifetime, 0.0)


def error_code(answer: bytes) -> str:
    """The error code of RFC 6749, if the answer has one. Not its description, which may quote the request."""
    code = json_object(answer).get("error")
    return f" ({code})" if isinstance(code, str) and re.fullmatch(r"[a-z_]{1,40}", code) else ""


def _checked(found: Any, source: str) -> str:
    token = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise TokenError(f"the access token of {source} is not a bearer token (RFC 6750)")
    return token


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in a thread."""

    result: Future[Any]
    began: float
    """Monotonic seconds."""


class _Calls:
    """The calls of a function, in threads, or of a coroutine function, on the loop. For any thread and event loop."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._running: list[_Call] = []

    async def result(self) -> Any:
        """The result of a new call, or of the one that runs."""
        if inspect.iscoroutinefunction(self._function):
            return await self._function()
        while True:
            call, is_own = self._join_or_start()
            found = await asyncio.wrap_future(call.result)
            if not inspect.isawaitable(found):
                return found
            if is_own:  # only one task can await it, and each of the others needs one of its own
                return await found

    def _join_or_start(self) -> tuple[_Call, bool]:
        with self._lock:
            now = time.monotonic()
            self._running = [each for each in self._running if not each.result.done()]
            if self._running and (
                now - self._running[-1].began < TOKEN_SECONDS or len(self._running) >= MAX_CALLS
            ):
                return self._running[-1], False
            call = _Call(in_thread(self._function), now)
            self._running.append(call)
            return call, True


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread of its own, which doesn't keep the process from its end."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # so that a waiter that is cancelled doesn't cancel it for the others

    def call() -> None:
        try:
            found = function()
        except BaseException as error:  # noqa: BLE001 - each waiter raises it
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=call, name="lakewarden-kafka-option", daemon=True).start()
    return future


def _provider(name: str) -> Callable[[], Any]:
    """What `module:function?name=value` names. `AccessError` says what isn't there."""
    place, _, arguments = name.partition("?")
    module, _, path = place.partition(":")
    try:
        found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise AccessError(
            f"oauth_token_provider={place} can't be imported: {error}; install it, and name it as module:function"
        ) from None
    if not callable(found):
        if hasattr(found, "token"):
            return lambda: found
        raise AccessError(f"oauth_token_provider={place} is neither a function nor a token provider")
    return functools.partial(found, **dict(parse_qsl(arguments)))
