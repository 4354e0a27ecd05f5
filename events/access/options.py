"""The options of a connection, and which combinations of them are valid."""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTH = "OAUTHBEARER"
MECHANISMS = (*PASSWORD_MECHANISMS, OAUTH)
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AccessError(ValueError):
    """An option is missing, contradicts another one, or names a file that can't be used. The message names the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a client authenticates. Paths are those of the machine that connects.

    The names of the options are those of the agent's settings without their prefix `kafka_`.
    """

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_password_file: str | None = None
    ssl_cafile: str | None = None
    """PEM file with the authorities that sign the brokers' certificates. None: the system's authorities."""
    ssl_certfile: str | None = None
    """PEM file with the client's certificate chain, and with its key unless `ssl_keyfile` has that."""
    ssl_keyfile: str | None = None
    ssl_key_password_file: str | None = None
    oauth_token_url: str | None = None
    """Token endpoint of an OpenID provider, for the grant type `client_credentials`."""
    oauth_client_id: str | None = None
    oauth_client_secret_file: str | None = None
    oauth_scope: str | None = None
    oauth_cafile: str | None = None
    """PEM file with the authorities of the token endpoint. None: the system's authorities."""
    oauth_token_provider: str | None = None
    """`module:function` or `module:function?name=value&…` of a token provider (`tokens.py`)."""
    oauth_token_file: str | None = None
    """File with a token that another program renews, as Kubernetes does for a service account."""
    oauth_extensions: str | None = None
    """SASL extensions that are sent with each token: `name=value,name=value`. A part that can't be a name belongs to the value
    before it: Confluent's `identityPoolId=pool-1,pool-2`."""

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def extensions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        last = ""
        for part in filter(None, map(str.strip, (self.oauth_extensions or "").split(","))):
            name, separator, value = map(str.strip, part.partition("="))
            if last and not separator and not _EXTENSION_NAME.fullmatch(part):
                found[last] += f",{part}"
            else:
                last, found[name] = name, value
        return found

    def check(self, name: Callable[[str], str] = str, objects: Container[str] = ()) -> None:
        """Raise `AccessError` for the first invalid combination. Reads no file.

        `name` returns the caller's name of an option. `objects` are aiokafka's arguments that the caller passes itself
        (`ssl_context`, `sasl_oauth_token_provider`).
        """
        if self.security_protocol not in PROTOCOLS:
            raise AccessError(f"{name('security_protocol')} must be one of {', '.join(PROTOCOLS)}")
        if self.sasl_mechanism not in MECHANISMS:
            raise AccessError(f"{name('sasl_mechanism')} must be one of {', '.join(MECHANISMS)}")
        self._check_tls(name)
        if "ssl_context" in objects and (self.ssl_cafile or self.ssl_certfile):
            raise AccessError(
                f"ssl_context and {name('ssl_cafile')} or {name('ssl_certfile')} are both set; remove one"
            )
        if self.uses_sasl and self.sasl_mechanism == OAUTH:
            if "sasl_oauth_token_provider" not in objects:
                self._check_tokens(name)
            elif self.oauth_extensions:
                raise AccessError(
                    f"sasl_oauth_token_provider and {name('oauth_extensions')} are both set; give the object a method extensions"
                )
            if wrong := wrong_extension(self.extensions):
                raise AccessError(f"{name('oauth_extensions')}: {wrong}")
        elif self.uses_sasl:
            self._check_password(name)

    def _check_tls(self, name: Callable[[str], str]) -> None:
        if self.ssl_certfile is None:
            for option in ("ssl_keyfile", "ssl_key_password_file"):
                if getattr(self, option) is not None:
                    raise AccessError(
                        f"{name(option)} needs {name('ssl_certfile')}, the client's certificate"
                    )
        if not self.uses_tls:
            for option in ("ssl_cafile", "ssl_certfile"):
                if getattr(self, option) is not None:
                    raise AccessError(
                        f"{name(option)} is set, but {name('security_protocol')} is {self.security_protocol}, which doesn't "
                        "encrypt; use SSL or SASL_SSL"
                    )

    def _check_password(self, name: Callable[[str], str]) -> None:
        missing = [] if self.sasl_username else [name("sasl_username")]
        if self.sasl_password is None and self.sasl_password_file is None:
            missing.append(f"{name('sasl_password')} or {name('sasl_password_file')}")
        if missing:
            raise AccessError(
                f"{' and '.join(missing)} missing; the mechanism {self.sasl_mechanism} requires a user and a password"
            )
        if self.sasl_password is not None and self.sasl_password_file is not None:
            raise AccessError(
                f"{name('sasl_password')} and {name('sasl_password_file')} are both set; remove one"
            )

    def _check_tokens(self, name: Callable[[str], str]) -> None:
        client = ("oauth_token_url", "oauth_client_id", "oauth_client_secret_file")
        given = [option for option in client if getattr(self, option)]
        if self.oauth_token_provider is not None:
            if self.oauth_token_file is not None:
                raise AccessError(
                    f"{name('oauth_token_provider')} and {name('oauth_token_file')} are both set; remove one"
                )
            if given:
                raise AccessError(
                    f"{name('oauth_token_provider')} and {name(given[0])} are both set; use a provider or client credentials"
                )
            if ":" not in self.oauth_token_provider:
                raise AccessError(f"{name('oauth_token_provider')} must be module:function")
            return
        if self.oauth_token_file is not None:
            if given:
                raise AccessError(f"{name('oauth_token_file')} and {name(given[0])} are both set; remove one")
            return
        if missing := [name(option) for option in client if option not in given]:
            raise AccessError(
                f"{' and '.join(missing)} missing; {OAUTH} requires client credentials, {name('oauth_token_file')} or "
                f"{name('oauth_token_provider')}"
            )
        url = urlsplit(self.oauth_token_url or "")
        if not url.hostname or not (
            url.scheme == "https" or (url.scheme == "http" and url.hostname in _LOOPBACK)
        ):
            raise AccessError(
                f"{name('oauth_token_url')} must be an https:// URL: the client's secret is sent there"
            )
        if url.username or url.password:
            raise AccessError(
                f"{name('oauth_token_url')} must not contain credentials; use {name('oauth_client_secret_file')}"
            )


def wrong_extension(extensions: Mapping[str, object]) -> str | None:
    """What can't be sent as a SASL extension (RFC 7628), if something can't. Anything else could change the SASL message."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
            return f"{name!r} can't be the name of a SASL extension: letters only, and not auth"
        if not isinstance(value, str) or not _EXTENSION_VALUE.fullmatch(value):
            return f"the SASL extension {name} needs a value of printable ASCII characters"
    return None
