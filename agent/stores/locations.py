"""Object URIs, taken apart once and strictly: `scheme://authority/part/part`.

The path is percent-decoded exactly once, as Hudi's lock does (a Java writer and we must arrive at the same
key). What would mean different things to different readers is refused instead of repaired: empty, `.` and
`..` segments, an encoded slash, control characters, malformed escapes, a query or a fragment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from lakewarden.agent.errors import AgentError
from lakewarden.events import canonical_scheme

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class LocationError(AgentError, ValueError):
    """The URI names no object we would touch. Correct the URI; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Location:
    """One object: where it is, and the decoded segments of its path."""

    scheme: str
    authority: str
    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        """The path as object stores spell it, without a leading slash."""
        return "/".join(self.parts)


def scheme_of(uri: str) -> str:
    """The canonical scheme."""
    scheme, separator, _ = uri.partition("://")
    if not separator or not scheme:
        raise LocationError(f"a location is written scheme://authority/path: uri={uri!r}")
    return canonical_scheme(scheme)


def parse_location(uri: str) -> Location:
    """Take an object's URI apart, or say what keeps it from naming one object."""
    scheme = scheme_of(uri)
    authority, _, path = uri.partition("://")[2].partition("/")
    if "?" in uri or "#" in uri:
        raise LocationError(f"a location has no query or fragment; write ? as %3F and # as %23: uri={uri!r}")
    if _CONTROL.search(uri) or _BAD_ESCAPE.search(path):
        raise LocationError(
            f"a location has no control characters, and % only before two hex digits: uri={uri!r}"
        )
    return Location(scheme, authority, tuple(_decode(segment, uri) for segment in path.split("/")))


def _decode(segment: str, uri: str) -> str:
    try:
        decoded = unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise LocationError(f"percent-escapes must spell utf-8: uri={uri!r}") from error
    if decoded in {"", ".", ".."} or "/" in decoded or _CONTROL.search(decoded):
        raise LocationError(f"no empty, '.' or '..' segment and no encoded slash in a location: uri={uri!r}")
    return decoded
