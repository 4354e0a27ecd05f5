"""The markers of a pending instant: which files it writes, in `.hoodie/.temp/<instant>/`, before it writes them.

| marker type | files in that folder |
| --- | --- |
| direct | `<partition>/<data file>.marker.<CREATE, MERGE or APPEND>`, empty, one for each data file |
| timeline server | `MARKERS.type`, and `MARKERS0` … with the same paths as lines; such a file is rewritten whole for each batch |

Rules:

1. The partition ends at the last slash, and is its folder: `a/` and `a` are one. It is never looked for at an underscore, because
   partitions have some.
2. A base file is `<file group>_<write token>_<instant>.<extension>`, a log file
   `.<file group>_<instant>.log.<version>_<write token>`. A file group is kept whole: `<uuid>-<n>`, but for rule 6.
3. A log file is an `append`, whatever its marker says. From table version 8 on, it says `CREATE` for an update.
4. Task retries write one file group under several tokens. Each pair of partition and file group is reported once.
5. A line counts once it ends with a newline: the rest may not be written yet. After a restart, Hudi's timeline server joins
   the lines that it rewrites with commas; they are separated at the markers' endings.
6. With a bucket index, a file group's name begins with the eight digits of its bucket. Two writers that create the same bucket
   choose the rest at random, and Hudi compares the digits only. So such a name is cut to its bucket, whichever index the table
   has, since no file says it. The buckets of consistent hashing have names that are in the table, the same for all writers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from lakewarden.events import Marker, Operation
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.handlers.partition_spelling import hudi_folder

_MARKERS_FILE = re.compile(r"MARKERS[0-9]{1,6}")
_BASE_FILE = re.compile(r"(?P<group>[^_]+)_[0-9]+-[0-9]+-[0-9]+_[0-9]+\.\w+")
_LOG_FILE = re.compile(r"\.(?P<group>.+?)_[0-9]+\.log\.[0-9]+(_[0-9]+-[0-9]+-[0-9]+)?(\.cdc)?")
_BUCKET = re.compile(r"([0-9]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-[0-9]+)?")
_OPERATIONS: dict[str, Operation] = {"CREATE": "create", "MERGE": "merge", "APPEND": "append"}
_JOINED = re.compile(r"(?<=\.marker\.)(CREATE|MERGE|APPEND),")


@dataclass(frozen=True, slots=True)
class MarkerLines:
    """What a file of the timeline server's markers says."""

    markers: tuple[Marker, ...]
    unreadable: tuple[str, ...]
    """Lines that are not markers. What they stand for is unknown."""


def is_markers_file(path: str) -> bool:
    """Whether a path below the instant's marker folder is a file with markers as lines."""
    return _MARKERS_FILE.fullmatch(path) is not None


def is_direct_marker(path: str) -> bool:
    """Whether a path below the instant's marker folder is itself a marker."""
    return ".marker." in path


def parse_marker(path: str) -> Marker:
    """The file group that a marker stands for. `path`: below the instant's marker folder, or a line of a file there.

    Raises `UnreadableHudi` if it is no marker.
    """
    data_file, _, kind = path.rpartition(".marker.")
    operation = _OPERATIONS.get(kind)
    if not data_file or operation is None:
        raise UnreadableHudi(f"not a marker of Hudi: {path[:200]!r}")
    return marker_of_file(data_file, operation)


def marker_of_file(path: str, operation: Operation) -> Marker:
    """The file group of a data file, which is a base file or a log file. `path`: relative to the table's root.

    Raises `UnreadableHudi` if it is neither.
    """
    partition, _, name = path.rpartition("/")
    log = _LOG_FILE.fullmatch(name)
    match = log or _BASE_FILE.fullmatch(name)
    if match is None:
        raise UnreadableHudi(f"not a data file of Hudi: {path[:200]!r}")
    return touched(partition, match["group"], "append" if log else operation)


def touched(partition: str, file_group: str, operation: Operation) -> Marker:
    """A marker of the protocol (rule 6). Raises `UnreadableHudi` if a name is longer than the protocol allows."""
    bucket = _BUCKET.fullmatch(file_group)
    file_group = file_group if bucket is None else bucket[1]
    try:
        return Marker(partition=hudi_folder(partition), file_group=file_group, operation=operation)
    except ValidationError as error:
        raise UnreadableHudi(
            f"the name of a partition or a file group is empty or too long: {partition[:80]!r}, {file_group[:80]!r}"
        ) from error


def read_markers_file(body: bytes) -> MarkerLines:
    """The markers in a file of the timeline server. Raises nothing: lines that are not markers are returned as they are."""
    text = body[: body.rfind(b"\n") + 1].decode(errors="replace")
    found, unreadable = [], []
    for line in _JOINED.sub(r"\1\n", text).split("\n"):
        try:
            if line:
                found.append(parse_marker(line))
        except UnreadableHudi:
            unreadable.append(line)
    return MarkerLines(each_once(found), tuple(unreadable))


def each_once(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """The first marker of each pair of partition and file group, in their order (rule 4)."""
    first: dict[tuple[str, str], Marker] = {}
    for each in markers:
        first.setdefault((each.partition, each.file_group), each)
    return tuple(first.values())
