"""Access tokens: client credentials against a small endpoint, providers of the user's own, and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import OAuthAuthenticator
from aiokafka.errors import KafkaError

from lakewarden.events.access import (
    Access,
    AccessError,
    TokenError,
    check_files,
    client_arguments,
    tokens as tokens_module,
)
from lakewarden.events.access.tokens import ClientCredentials, Tokens, guarded_provider, tokens
from tests.unit.events.access.token_endpoint import CLIENT, TokenEndpoint, token_endpoint

SECRET = "the secret: + & 100 %"
PATIENCE_SECONDS = 60.0
HERE = "tests.unit.events.access.test_tokens"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    count = iter(range(1, 100))
    with token_endpoint({CLIENT: SECRET}, lambda _: f"token-{next(count)}") as made:
        yield made


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _access(endpoint: TokenEndpoint, folder: Path, **more: str) -> Access:
    (folder / "secret").write_text(SECRET + "\n")
    return Access(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        oauth_token_url=endpoint.url,
        oauth_client_id=CLIENT,
        oauth_client_secret_file=str(folder / "secret"),
        **more,
    )


def test_a_token_is_requested_once_and_used_until_a_fifth_of_its_lifetime_is_left(
    endpoint: TokenEndpoint, tmp_path: Path, clock: Clock
) -> None:
    credentials = ClientCredentials(_access(endpoint, tmp_path, oauth_scope="kafka one"), clock)

    assert [credentials.token(), credentials.token()] == ["token-1", "token-1"]
    clock.now += 239
    assert credentials.token() == "token-1"
    clock.now += 1
    assert credentials.token() == "token-2"
    assert endpoint.requests == [{"grant_type": ["client_credentials"], "scope": ["kafka one"]}] * 2


def test_a_valid_token_is_used_while_the_endpoint_fails_and_no_longer(
    endpoint: TokenEndpoint, tmp_path: Path, clock: Clock
) -> None:
    credentials = ClientCredentials(_access(endpoint, tmp_path), clock)
    credentials.token()
    endpoint.answer = (503, b"")

    clock.now += 299
    assert credentials.token() == "token-1"
    clock.now += 1
    with pytest.raises(TokenError, match="answers 503"):
        credentials.token()
    endpoint.answer = None
    assert credentials.token() == "token-2"


def test_a_rotated_client_secret_is_read_for_the_next_token(
    endpoint: TokenEndpoint, tmp_path: Path, clock: Clock
) -> None:
    credentials = ClientCredentials(_access(endpoint, tmp_path), clock)
    credentials.token()
    endpoint.secrets[CLIENT] = "another"
    (tmp_path / "secret").write_text("another")

    clock.now += 300

    assert credentials.token() == "token-2"


def test_a_refused_client_is_an_error_without_the_secret(
    endpoint: TokenEndpoint, tmp_path: Path, clock: Clock
) -> None:
    """The endpoint quotes the secret in its description of the error."""
    credentials = ClientCredentials(_access(endpoint, tmp_path), clock)
    endpoint.secrets.clear()

    with pytest.raises(TokenError) as caught:
        credentials.token()

    assert str(caught.value) == (
        f"the token endpoint {endpoint.url} answers 401 (invalid_client); check oauth_client_id, oauth_client_secret_file "
        "and oauth_scope"
    )


def test_a_redirect_is_not_followed(endpoint: TokenEndpoint, tmp_path: Path, clock: Clock) -> None:
    """The request has the client's secret in a header."""
    endpoint.redirect = f"{endpoint.url}/elsewhere"

    with pytest.raises(TokenError, match="answers 302"):
        ClientCredentials(_access(endpoint, tmp_path), clock).token()

    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'"x"', b"{}", b'{"access_token": 5}', b'{"access_token": "a\\u0001b"}']
)
def test_an_answer_without_a_bearer_token_is_an_error(
    answer: bytes, endpoint: TokenEndpoint, tmp_path: Path, clock: Clock
) -> None:
    """A control character in a token could change the SASL message."""
    endpoint.answer = (200, answer)

    with pytest.raises(TokenError):
        ClientCredentials(_access(endpoint, tmp_path), clock).token()


def test_an_endpoint_that_cannot_be_reached_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    gone = TokenEndpoint({}, str, url="http://127.0.0.1:1/token")

    with pytest.raises(
        TokenError, match=r"http://127.0.0.1:1/token can't be reached: .* check oauth_token_url"
    ):
        ClientCredentials(_access(gone, tmp_path), clock).token()


def a_token() -> str:
    return "plain"


def a_signer(region: str, debug: bool = False) -> tuple[str, int]:  # noqa: FBT002 - as the signer of Amazon MSK
    return f"signed-for-{region}", 1_700_000_000_000


async def a_coroutine() -> str:
    return "awaited"


class ProviderObject:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    async def token(self) -> str:
        return f"of-object-{self.made}"

    def extensions(self) -> dict[str, str]:
        return {"logicalCluster": "lkc-1"}


def no_token() -> str:
    raise LookupError("no role\nfor this host")


def no_text() -> Any:
    return None


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("a_token", "plain"),
        ("a_signer?region=eu-central-1", "signed-for-eu-central-1"),
        ("a_coroutine", "awaited"),
    ],
)
async def test_a_provider_of_the_users_own_is_named_by_one_option(name: str, token: str) -> None:
    assert await tokens(_own(name)).token() == token


async def test_a_provider_object_is_made_once_and_its_extensions_are_sent() -> None:
    source = tokens(_own("ProviderObject"))

    assert [await source.token(), await source.token()] == ["of-object-1", "of-object-1"]
    assert source.extensions() == {"logicalCluster": "lkc-1"}


async def test_a_client_sends_the_extensions_of_its_options_after_the_token(
    endpoint: TokenEndpoint, tmp_path: Path
) -> None:
    """In the form of RFC 7628, as aiokafka writes it; with every source of tokens."""
    (tmp_path / "token").write_text("of-a-file \n")
    given = {"oauth_extensions": "logicalCluster=lkc-2, identityPoolId=pool-1"}
    sources = {
        "of-object-": _own("ProviderObject", **given),
        "plain": _own("a_token", **given),
        "token-1": _access(endpoint, tmp_path, **given),
        "of-a-file": Access(
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            oauth_token_file=str(tmp_path / "token"),
            **given,
        ),
    }
    for token, access in sources.items():
        access.check()
        arguments = client_arguments(access)
        provider = arguments["sasl_oauth_token_provider"]
        message, _ = await OAuthAuthenticator(sasl_oauth_token_provider=provider).step(None)

        parts = message.decode().split("\x01")
        assert parts[0] == "n,,"
        assert parts[1].startswith(f"auth=Bearer {token}")
        assert parts[2:] == ["logicalCluster=lkc-2", "identityPoolId=pool-1", "", ""]


async def test_a_token_file_is_read_at_each_connect(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    access = Access(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", oauth_token_file=str(tmp_path / "token")
    )
    check_files(access)
    source = tokens(access)
    assert await source.token() == "first"
    (tmp_path / "token").write_text("second")
    assert await source.token() == "second"
    (tmp_path / "token").unlink()

    with pytest.raises(TokenError, match=r"oauth_token_file=.*token can't be read"):
        await source.token()
    with pytest.raises(AccessError, match=r"oauth_token_file=.*token can't be read"):
        check_files(access)


class WrongExtensions(ProviderObject):
    def extensions(self) -> dict[str, str]:
        return {"pool": "a\x01auth=Bearer b"}


async def test_an_extension_that_would_change_the_message_is_an_error() -> None:
    source = tokens(_own("WrongExtensions"))
    await source.token()

    with pytest.raises(TokenError, match="the SASL extension pool needs a value of printable ASCII"):
        source.extensions()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_token", f"no access token from {HERE}:no_token: LookupError: no role for this host"),
        ("no_text", f"the access token of {HERE}:no_text is not a bearer token (RFC 6750)"),
        ("a_signer", "TypeError"),
    ],
)
async def test_any_failure_of_a_provider_is_a_kafka_error(name: str, why: str) -> None:
    """aiokafka's background tasks end silently at any other exception."""
    source = tokens(_own(name))

    with pytest.raises(TokenError) as caught:
        await source.token()

    assert isinstance(caught.value, KafkaError)
    assert why in str(caught.value)
    assert source.problem == str(caught.value)


async def test_a_problem_is_forgotten_with_the_next_token() -> None:
    answers = iter([None, "a-token"])
    source = Tokens(lambda: next(answers), "a list")
    with pytest.raises(TokenError):
        await source.token()

    await source.token()

    assert source.problem is None


async def test_an_object_that_the_caller_passes_is_guarded_too() -> None:
    class Broken:
        async def token(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(TokenError, match="no access token from Broken: ZeroDivisionError"):
        await guarded_provider(Broken()).token()


@pytest.mark.parametrize("found", [LookupError("no pool"), ["pool"], {5: "a"}, {"pool": 5}, {"pool": ""}])
async def test_any_failure_of_a_providers_extensions_is_a_kafka_error(found: Any) -> None:
    class Provider(ProviderObject):
        def extensions(self) -> Any:
            if isinstance(found, Exception):
                raise found
            return found

    source = guarded_provider(Provider())
    await source.token()

    with pytest.raises(TokenError, match="Provider: ") as caught:
        source.extensions()
    assert source.problem == str(caught.value)


async def test_a_provider_whose_extensions_are_none_has_none() -> None:
    class Provider(ProviderObject):
        def extensions(self) -> Any:
            return None

    source = guarded_provider(Provider())
    await source.token()

    assert source.extensions() == {}


class Hanging:
    """A source whose calls return when a test lets them. Only the first `hanging` calls wait."""

    def __init__(self, hanging: int = 1_000) -> None:
        self.calls = 0
        self.hanging = hanging
        self.released = threading.Event()

    def __call__(self) -> str:
        self.calls += 1
        number = self.calls
        if number <= self.hanging:
            self.released.wait(60)
        return f"token-{number}"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    source = Hanging()
    yield source
    source.released.set()


async def test_a_source_that_hangs_occupies_no_thread_of_the_event_loop(hanging: Hanging) -> None:
    """The loop resolves host names in these threads, for the stores too. All connects wait for one call."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    source = Tokens(hanging, "it")
    connects = [asyncio.ensure_future(source.token()) for _ in range(10)]
    await asyncio.sleep(0.05)

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.to_thread(lambda: "resolved") == "resolved"

    connects.pop().cancel()
    await asyncio.sleep(0)
    hanging.released.set()
    assert await asyncio.gather(*connects) == ["token-1"] * 9
    assert hanging.calls == 1


async def test_after_a_call_that_hangs_another_one_is_made(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was lost on its way may never return. The number of those is bounded."""
    monkeypatch.setattr(tokens_module, "TOKEN_SECONDS", 0.02)
    source = Tokens(hanging, "it")
    more = 3
    while more:
        with pytest.raises(TokenError, match=r"no access token from it within 0.02 s"):
            await source.token()
        more -= hanging.calls == tokens_module.MAX_CALLS
    assert hanging.calls == tokens_module.MAX_CALLS

    monkeypatch.setattr(tokens_module, "TOKEN_SECONDS", PATIENCE_SECONDS)
    hanging.released.set()
    assert (await source.token()).startswith("token-")


async def test_a_function_that_returns_a_coroutine_serves_connects_at_the_same_time() -> None:
    """Each coroutine can be awaited by one of them only."""

    def function() -> Any:
        return a_coroutine()

    source = Tokens(function, "it")

    assert await asyncio.gather(*(source.token() for _ in range(5))) == ["awaited"] * 5


@pytest.mark.parametrize("name", [f"{HERE}:nothing", "no_such_module:x", f"{HERE}:HERE"])
def test_a_provider_that_is_not_there_is_an_error_before_anything_connects(name: str) -> None:
    with pytest.raises(AccessError, match=f"oauth_token_provider={name}"):
        tokens(Access(oauth_token_provider=name))


def _own(name: str, **more: str) -> Access:
    return Access(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        oauth_token_provider=f"{HERE}:{name}",
        **more,
    )
