"""The one error of this package."""

from __future__ import annotations


class UnreadableHudi(ValueError):
    """A name or a file isn't what Hudi writes, or it is of a release that this package doesn't know. The text says which."""
