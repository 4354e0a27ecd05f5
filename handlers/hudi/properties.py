"""`.hoodie/hoodie.properties`: which version and layout a table has, and where its timeline is.

Table version 6 (Hudi 0.14 and 0.15) has layout 1, versions 8 (1.0) and 9 (1.1 and 1.2) have layout 2. Other versions are
refused: a reader that guesses would miss commits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakewarden.handlers.hudi.timeline import META_FOLDER, Layout, UnreadableHudi

KNOWN_VERSIONS: Mapping[int, Layout] = {6: 1, 8: 2, 9: 2}
"""The layout of each table version that this package has been tried with."""

MAX_BYTES = 1024 * 1024
"""Limit of the file. Hudi's has a few kilobytes."""

_LINE = re.compile(r"(?P<key>(?:[^=:\s\\]|\\.)+)[ \t]*[=:]?[ \t]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_FOLDER = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True, slots=True)
class HudiTable:
    """What the properties say of a table."""

    version: int
    layout: Layout
    timeline: str
    """The timeline's folder, relative to the table's root, with a slash at its end."""
    archive: str
    """The archive's folder, likewise."""
    kind: str
    """`COPY_ON_WRITE` or `MERGE_ON_READ`."""
    is_utc: bool = False
    """Whether its instants are named in UTC. Else they are in the time zone of each writer."""


def read_properties(body: bytes) -> HudiTable:
    """What `hoodie.properties` says. Raises `UnreadableHudi` if it isn't such a file, or the table's version isn't known."""
    fields = parse_properties(body)
    version = _number(fields, "hoodie.table.version")
    layout = KNOWN_VERSIONS.get(version)
    if layout is None:
        known = ", ".join(str(each) for each in KNOWN_VERSIONS)
        raise UnreadableHudi(f"table version {version} is unknown; known are {known}")
    if (
        "hoodie.timeline.layout.version" in fields
        and (stated := _number(fields, "hoodie.timeline.layout.version")) != layout
    ):
        raise UnreadableHudi(
            f"table version {version} with timeline layout {stated}; expected layout {layout}"
        )
    if layout == 1:
        timeline = META_FOLDER
        archive = timeline + _folder(fields, "hoodie.archivelog.folder", "archived")
    else:
        timeline = META_FOLDER + _folder(fields, "hoodie.timeline.path", "timeline")
        archive = timeline + _folder(fields, "hoodie.timeline.history.path", "history")
    is_utc = fields.get("hoodie.table.timeline.timezone", "").upper() == "UTC"
    kind = fields.get("hoodie.table.type", "COPY_ON_WRITE")
    return HudiTable(version, layout, timeline, archive, kind, is_utc)


def _folder(fields: Mapping[str, str], key: str, default: str) -> str:
    folder = fields.get(key) or default
    if not _FOLDER.fullmatch(folder) or folder in (".", ".."):
        raise UnreadableHudi(f"a folder of the timeline is not a plain name: {key}={folder[:100]!r}")
    return f"{folder}/"


def parse_properties(body: bytes) -> dict[str, str]:
    """The keys and values of a file in Java's properties format. Raises `UnreadableHudi` if it is too long or no text."""
    if len(body) > MAX_BYTES:
        raise UnreadableHudi(f"hoodie.properties has more than {MAX_BYTES:,} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise UnreadableHudi(f"hoodie.properties is not text: {error}") from error
    fields: dict[str, str] = {}
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line.lstrip(" \t\f")
        match = None if stripped[:1] in ("", "#", "!") else _LINE.match(stripped)
        if match is not None:
            fields[_unescape(match["key"])] = _unescape(match["value"])
    return fields


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROLS.get(escaped, escaped)

    return _ESCAPE.sub(character, text)


def _number(fields: Mapping[str, str], key: str) -> int:
    text = fields.get(key)
    if text is None or not re.fullmatch(r"[0-9]{1,9}", text):
        found = "is missing" if text is None else f"is not a number: {text[:100]!r}"
        raise UnreadableHudi(f"{key} in hoodie.properties {found}")
    return int(text)
