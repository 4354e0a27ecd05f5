"""What a table's files provoke in their readers. Anyone who may write to a table may put anything there.

1. A reader raises `Unreadable`, and no other error, whatever the bytes are. Its text names no error of Python, and has no bytes.
2. What consists of pieces is read piece by piece (`read_each`): one that can't be read costs itself, and no other.
3. The values of a file are counted before they are made (`json_of`, `avro_blocks.py`).
4. What JSON allows and Python refuses (an integer of thousands of digits, deep nesting, bytes that are no text) becomes a value
   that no field has, so that it costs its piece.
5. A number that can't be true isn't known (`number`): a negative size, a duration of years, a time in 1970.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import ValidationError

MAX_VALUES: Final = 4_000_000
"""Values of one JSON text, up to about 100 bytes each. Metadata of a commit of 100,000 files has 3,000,000."""
FIRST_MS: Final = 1_000_000_000_000
"""In 2001, before any table format. What is older was not dated."""
LAST_MS: Final = 100_000_000_000_000
"""In the year 5138. Times in microseconds are later."""
MAX_DIGITS: Final = 100
"""An integer of JSON that has more is infinite, or nearly."""
MAX_DEPTH: Final = 100
"""What is nested deeper in JSON is no value."""
MAX_DURATION_MS: Final = 30 * 86_400_000
MAX_SIZE: Final = 1 << 47
"""Bytes of one file: more than any store keeps in one."""

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class Unreadable(ValueError):
    """A piece of a table is damaged, or says something that this version doesn't understand. The text is for operators."""


Failed: TypeAlias = list[tuple[_Item, str]]
"""The pieces that could not be read, and why."""


def why_unreadable(error: BaseException) -> str:
    """Return what an error of a reader says of the bytes."""
    match error:
        case Unreadable():
            return str(error)
        case RecursionError():
            return "it is nested too deeply"
        case MemoryError():
            return "it needs more memory than there is"
        case UnicodeError():
            return "it has characters that are no text"
        case json.JSONDecodeError():
            return f"not JSON, from character {error.pos:,} on"
        case ValidationError():
            return "a name is empty, too long or no text"
        case KeyError() if error.args and isinstance(error.args[0], str):
            return f"it lacks {error.args[0]!r:.100}"
        case _:
            if type(error).__module__.startswith("lakewarden"):
                return str(error)
            return "a value is missing, or of another type or form than the format has there"


@contextmanager
def reading(what: str, raised: type[Unreadable] = Unreadable) -> Iterator[None]:
    """Raise this error for whatever a reader comes upon. `what` is the piece, as the subject of a line."""
    try:
        yield
    except raised:
        raise
    except Exception as error:  # whatever the bytes provoke: there is no common class
        raise raised(f"{what} can't be read: {why_unreadable(error)}") from error


def read_each(pieces: Iterable[_Item], read: Callable[[_Item], _Found]) -> tuple[list[_Found], Failed[_Item]]:
    """Return what was read of the pieces, and those that can't be read."""
    found: list[_Found] = []
    failed: Failed[_Item] = []
    for each in pieces:
        try:
            found.append(read(each))
        except Exception as error:  # noqa: BLE001 - as in `reading`
            failed.append((each, why_unreadable(error)))
    return found, failed


def known(value: Any, kind: Any) -> Any:
    """Return the value, or raise if it is of another type: compared, it would count as another value."""
    if not isinstance(value, kind):
        raise Unreadable(why_unreadable(TypeError()))
    return value


def number(value: Any, most: int, least: int = 0) -> int | None:
    """Return a number that a file gives, maybe as text, or None: it is none, or can't be true."""
    if isinstance(value, bool):
        return None
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if least <= found <= most else None


def json_of(body: bytes) -> Any:
    """Return the value of a JSON text. Raises `Unreadable`, also for one of too many values."""
    if sum(map(body.count, (b",", b"{", b"["))) > MAX_VALUES:
        raise Unreadable(f"it has more than {MAX_VALUES:,} values")
    try:
        return json.loads(body)
    except MemoryError as error:
        raise Unreadable(why_unreadable(error)) from error
    except (ValueError, RecursionError):
        try:
            return json.loads(_shallow(body.decode("utf-8-sig", "surrogateescape")), parse_int=_integer)
        except (ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(why_unreadable(error)) from error


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def _shallow(text: str) -> str:
    """Return a JSON text with NaN in place of what is nested too deeply (rule 4)."""
    depth, start, kept = 0, 0, list[str]()
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            if depth == MAX_DEPTH:
                kept += text[start : token.start()], "NaN"
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if depth == MAX_DEPTH:
                start = token.end()
    if depth > MAX_DEPTH:
        raise RecursionError
    return "".join([*kept, text[start:]])


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)
