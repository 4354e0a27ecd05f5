"""The canonical URI of a table, so that all writers of a table use the same key.

- `scheme://authority/path`, the scheme in lower case, no trailing or doubled slash, no `.` or `..` segment.
- `s3a` and `s3n` become `s3`, `abfss` becomes `abfs`. A local table is `file:///path`.
- Azure's host is in lower case, without its default port.
- Every character of the path stands for itself, as in Hadoop's `Path`: nothing is decoded, and Unicode isn't normalised.
- A path that programs read in two ways is no table's. `?` and `#` end it for pypaimon and pyarrow, and don't for Hadoop. In a
  local path, pypaimon and Python decode a percent escape (`%20`), and Hadoop doesn't. On object stores, they all leave it.

`object_uri` is the other form: stores and Hudi's lock client decode the URI of an object once.
"""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

MAX_PATH = 1024
"""Characters of a table URI, a partition or a file group: the length limit of an S3 key."""

_URI = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/]*)(?P<path>/.*)?$", re.DOTALL)
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DEFAULT_PORT: Final = re.compile(r":(443|80)?$")
"""Default ports of Azure, encrypted or not."""


def canonical_scheme(scheme: str) -> str:
    """The canonical spelling of a scheme. Hadoop has several schemes for one store."""
    lowered = scheme.lower()
    return _ALIASES.get(lowered, lowered)


def is_glob(entry: str) -> bool:
    """Whether an entry that names tables is a glob, with one of fnmatch's wildcards; otherwise it is the URI of one table."""
    return any(wildcard in entry for wildcard in "*?[")


@lru_cache(maxsize=1024)
def canonical_table(table: str) -> str:
    """The canonical URI of a table. `table` is a URI or an absolute local path.

    Raises `ValueError` if there is no canonical URI: for a relative path, a `..` segment, a URI without a path, or one that
    programs read in two ways.
    """
    canonical = canonical_location(table)
    if "?" in canonical:
        raise ValueError(
            f"table URI has '?': {table!r}; some programs end the path there, and others don't; rename the folder"
        )
    if len(canonical) > MAX_PATH:
        raise ValueError(
            f"table URI has {len(canonical)} characters, at most {MAX_PATH} are possible: {table[:100]!r}…"
        )
    return _read_in_one_way(canonical)


def canonical_glob(glob: str) -> str:
    """The glob that is matched against canonical URIs. `glob` is one of URIs or of absolute local paths, or one table."""
    if glob.startswith("/"):
        glob = "file://" + glob
    scheme, separator, rest = glob.partition("://")
    if not separator:
        raise ValueError(
            f"{glob!r} is not a table URI; use a form such as s3://bucket/warehouse/* or file:///data/*"
        )
    if not is_glob(glob):
        return canonical_table(glob)
    authority, slash, path = rest.partition("/")
    scheme = canonical_scheme(scheme)
    return _read_in_one_way(f"{scheme}://{_canonical_authority(scheme, authority)}{slash}{path}")


def _read_in_one_way(uri: str) -> str:
    if "#" in uri:
        raise ValueError(
            f"table URI has '#': {uri!r}; some programs end the path there, and others don't; rename the folder"
        )
    escape = _ESCAPE.search(uri) if uri.startswith("file:") else None
    if escape is not None:
        raise ValueError(
            f"local table's path has the percent escape {escape[0]!r}: {uri!r}; some programs decode it, and others don't; "
            f"write {unquote(uri)!r}, or rename the folder if {escape[0]!r} is part of its name"
        )
    return uri


def canonical_location(uri: str) -> str:
    """The canonical URI of a folder or an object, which may have escapes. Raises `ValueError` if there is none."""
    if uri.startswith("/"):
        uri = "file://" + uri
    elif uri.startswith("file:/") and not uri.startswith("file://"):
        uri = "file://" + uri.removeprefix("file:")
    match = _URI.match(uri)
    if match is None:
        raise ValueError(f"not a table URI: {uri!r}; write scheme://authority/path or an absolute local path")
    scheme = canonical_scheme(match["scheme"])
    segments = [segment for segment in (match["path"] or "").split("/") if segment not in ("", ".")]
    if ".." in segments:
        raise ValueError(f"table URI has a '..' segment: {uri!r}; write the path without it")
    if _CONTROL.search(uri):
        raise ValueError(f"table URI has a control character: {uri!r}")
    if any("\ud800" <= character <= "\udfff" for character in uri):
        raise ValueError(f"table URI isn't Unicode text: {uri!r}; rename the folder to a name in UTF-8")
    if not segments:
        raise ValueError(f"table URI has no path: {uri!r}; a bucket or a root folder is not a table")
    if scheme == "file" and match["authority"] not in ("", "localhost"):
        raise ValueError(f"file URI names a host: {uri!r}; write file:///path")
    authority = "" if scheme == "file" else match["authority"]
    if scheme != "file" and not authority:
        raise ValueError(f"table URI names no bucket or host: {uri!r}")
    return f"{scheme}://{_canonical_authority(scheme, authority)}/{'/'.join(segments)}"


def _canonical_authority(scheme: str, authority: str) -> str:
    """The canonical spelling of a bucket or a host. A bucket's case counts; Azure's host is one of DNS."""
    container, at, host = authority.partition("@")
    if scheme != "abfs" or not at:
        return authority
    return f"{container}@{_DEFAULT_PORT.sub('', host.lower())}"


def object_uri(table: str, path: str = "") -> str:
    """The URI of a table's folder or of an object below it, with what a store would decode escaped."""
    return re.sub("[%?#]", lambda found: f"%{ord(found[0]):02X}", table + path)


def require_canonical(table: str) -> str:
    """Return `table` if it is canonical. Raises `ValueError` with the canonical spelling otherwise."""
    canonical = canonical_table(table)
    if table != canonical:
        raise ValueError(f"table is not canonical: {table!r}; write {canonical!r}")
    return table
