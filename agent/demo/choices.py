"""The demo's defaults, choices and error, without imports, so that `lakewarden --help` works without its dependencies."""

from __future__ import annotations

from enum import StrEnum

DEFAULT_BUCKET = "lakewarden-demo"
DEFAULT_DAYS = 40
"""34,701 flights: less than four minutes for both contests, on two idle cores."""


class DemoError(Exception):
    """The demo failed. The message is one line: what happened, and what to do or where to look."""


class Admissions(StrEnum):
    """Which contests the demo runs: one with each admission, or both, one after the other."""

    OPTIMISTIC = "optimistic"
    AUTO = "auto"
    BOTH = "both"

    @property
    def each(self) -> tuple[str, ...]:
        """The admission of each contest, in order."""
        return ("optimistic", "auto") if self is Admissions.BOTH else (self.value,)


class FormatChoice(StrEnum):
    """The format of the demo's tables."""

    PAIMON = "paimon"
    DELTA = "delta"
    HUDI = "hudi"
    ICEBERG = "iceberg"

    @property
    def label(self) -> str:
        return "Delta Lake" if self is FormatChoice.DELTA else self.value.capitalize()

    @property
    def on_spark(self) -> bool:
        """Whether Spark creates and reads the tables. pypaimon does it for Paimon's."""
        return self is not FormatChoice.PAIMON
