"""Strict parser for object URIs: `scheme://authority/segment/segment`.

The path is percent-decoded exactly once, as Hudi's lock client does, so that a Java writer and the agent use the same key.
The parser refuses what other programs could read differently: empty, `.` and `..` segments, an encoded slash, control
characters, malformed escapes, a query, a fragment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lakewarden.agent.errors import AgentError
from lakewarden.events import canonical_scheme

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class LocationError(AgentError, ValueError):
    """The URI does not name exactly one object. Correct it; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Location:
    """One object: its scheme, its authority and the decoded segments of its path."""

    scheme: str
    authority: str
    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key in an object store: the path without a leading slash."""
        return "/".join(self.parts)


def scheme_of(uri: str) -> str:
    """The canonical scheme."""
    scheme, separator, _ = uri.partition("://")
    if not separator or not scheme:
        raise LocationError(f"a location has the form scheme://authority/path: uri={uri!r}")
    return canonical_scheme(scheme)


def parse_location(uri: str) -> Location:
    """Parse an object's URI; raise `LocationError` if it doesn't name exactly one object."""
    scheme = scheme_of(uri)
    authority, _, path = uri.partition("://")[2].partition("/")
    if "?" in uri or "#" in uri:
        raise LocationError(
            f"a location can't have a query or a fragment; write ? as %3F and # as %23: uri={uri!r}"
        )
    if _CONTROL.search(uri) or _BAD_ESCAPE.search(path):
        raise LocationError(
            f"a location can't have control characters, and % must be followed by two hex digits: uri={uri!r}"
        )
    return Location(scheme, authority, tuple(_decode(segment, uri) for segment in path.split("/")))


def _decode(segment: str, uri: str) -> str:
    try:
        decoded = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise LocationError(f"the percent-escapes of a location must be UTF-8: uri={uri!r}") from error
    if decoded in {"", ".", ".."} or "/" in decoded or _CONTROL.search(decoded):
        raise LocationError(
            f"a location can't have an empty, '.' or '..' segment, or an encoded slash: uri={uri!r}"
        )
    return decoded


DEFAULT_REGION = "us-east-1"
"""For a request that no region changes: to an endpoint of its own, or without a signature."""


def aws_region(session: AioSession) -> str | None:
    """AWS_DEFAULT_REGION, else that of the profile, else AWS_REGION, which botocore doesn't read."""
    return session.get_config_variable("region") or os.environ.get("AWS_REGION") or None


async def read_credentials_again(used: Any, profile: str | None = None) -> None:
    """Put the keys of a file that was replaced into the credentials of a client. botocore renews only what expires by itself."""
    from aiobotocore.credentials import AioCredentials
    from aiobotocore.session import AioSession

    found = await AioSession(profile=profile).get_credentials()
    if type(found) is AioCredentials and type(used) is AioCredentials:
        used.access_key, used.secret_key, used.token = found.access_key, found.secret_key, found.token


def s3_endpoint() -> str | None:
    """That of AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the profile, or None. It takes a fifth of a second, and loads botocore."""
    from botocore.config import Config
    from botocore.session import Session

    # botocore says the endpoint of a client only, and not whether it is AWS's own.
    used, of_aws = (
        Session().create_client("s3", DEFAULT_REGION, config=config).meta.endpoint_url
        for config in (Config(), Config(ignore_configured_endpoint_urls=True))
    )
    return None if used == of_aws else used
