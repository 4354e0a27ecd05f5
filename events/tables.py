"""The canonical URI of a table, so that all writers of a table use the same key.

- `scheme://authority/path`, the scheme in lower case, no trailing or doubled slash, no `.` or `..` segment.
- `s3a` and `s3n` become `s3`, `abfss` becomes `abfs`. A local table is `file:///path`.
- Percent signs stay as they are: readers compare the URI as text and never decode it.
"""

from __future__ import annotations

import re

_URI = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/]*)(?P<path>/.*)?$", re.DOTALL)
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}


def canonical_scheme(scheme: str) -> str:
    """The canonical spelling of a scheme. Hadoop has several schemes for one store."""
    lowered = scheme.lower()
    return _ALIASES.get(lowered, lowered)


def is_glob(entry: str) -> bool:
    """Whether an entry that names tables is a glob, with one of fnmatch's wildcards; otherwise it is the URI of one table."""
    return any(wildcard in entry for wildcard in "*?[")


def canonical_table(table: str) -> str:
    """The canonical URI of a table. `table` is a URI or an absolute local path.

    Raises `ValueError` if there is no canonical URI: for a relative path, a `..` segment, or a URI without a path.
    """
    if table.startswith("/"):
        table = "file://" + table
    elif table.startswith("file:/") and not table.startswith("file://"):
        table = "file://" + table.removeprefix("file:")
    match = _URI.match(table)
    if match is None:
        raise ValueError(
            f"not a table URI: {table!r}; write scheme://authority/path or an absolute local path"
        )
    scheme = canonical_scheme(match["scheme"])
    segments = [segment for segment in (match["path"] or "").split("/") if segment not in ("", ".")]
    if ".." in segments:
        raise ValueError(f"table URI has a '..' segment: {table!r}; write the path without it")
    if any(ord(character) < 32 for character in table):
        raise ValueError(f"table URI has a control character: {table!r}")
    if not segments:
        raise ValueError(f"table URI has no path: {table!r}; a bucket or a root folder is no table")
    if scheme == "file" and match["authority"] not in ("", "localhost"):
        raise ValueError(f"file URI names a host: {table!r}; write file:///path")
    authority = "" if scheme == "file" else match["authority"]
    if scheme != "file" and not authority:
        raise ValueError(f"table URI names no bucket or host: {table!r}")
    return f"{scheme}://{authority}/{'/'.join(segments)}"


def require_canonical(table: str) -> str:
    """Return `table` if it is canonical. Raises `ValueError` with the canonical spelling otherwise."""
    canonical = canonical_table(table)
    if table != canonical:
        raise ValueError(f"table is not canonical: {table!r}; write {canonical!r}")
    return table
