"""Names as people read and type them. Any client of Kafka chooses its own; a name may contain what a terminal obeys.

`visible` and `typed` are inverse: what a command prints as text can be given back to a command.
"""

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\\u([0-9a-f]{4})|\\U(000[0-9a-f]{5}|0010[0-9a-f]{4})")


def visible(text: str) -> str:
    r"""Return the text on one line, with controls, line breaks and marks of the writing direction as `\u001b`."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(each if _is_plain(text, at, each) else _escaped(each) for at, each in enumerate(text))


def visible_blanks(text: str) -> str:
    """Return visible text for a column of a table, in which a blank that others would swallow is escaped, too."""
    return re.sub("^ | $|(?<= ) ", lambda _: _escaped(" "), text)


def typed(text: str) -> str:
    """Return the name that `visible` has printed as this text."""
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), text)


def _is_plain(text: str, at: int, character: str) -> bool:
    return character.isprintable() and not (character == "\\" and _ESCAPE.match(text, at))


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"
