"""The one error of this package."""


class UnreadableHudi(ValueError):
    """A name or a file isn't what Hudi writes, or it is of a release that this package doesn't know. The text says which."""
