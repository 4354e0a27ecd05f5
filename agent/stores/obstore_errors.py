"""The texts of obstore's errors."""

from __future__ import annotations

from typing import Final

_FOR_DEVELOPERS: Final = "\n\nDebug source:\n"


def error_text(error: BaseException) -> str:
    """The text of an error without what obstore adds for its own developers."""
    return str(error).partition(_FOR_DEVELOPERS)[0]
