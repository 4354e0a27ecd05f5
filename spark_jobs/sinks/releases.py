"""Which releases of a table format a sink accepts: those that the tests have run with, unless the user says otherwise.

The sinks use classes of the formats that are no stable API. Another release may have them, and use them in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a table format in a Spark session."""

    version: str
    unhooked: str | None
    """Why its commit can't be put under the grant alone, or None if it can."""


def require_tried(
    library: str, version: str, spark: str, tried: Mapping[str, Sequence[str]], *, untried: bool
) -> None:
    """Raise `UnsupportedSpark` if this version wasn't tried on this version of Spark, and not `untried`.

    `tried` has minor releases of the library, by Spark's.
    """
    if not untried and _minor(version) not in tried.get(_minor(spark), ()):
        raise UnsupportedSpark(
            f"{library} {version} on Spark {spark} was not tried with this sink, only {listed(tried)}; use that, or pass "
            "untried_release=True after a test with a copy of your table"
        )


def listed(tried: Mapping[str, Sequence[str]]) -> str:
    """Return the releases for a message."""
    return ", ".join(
        f"{release} on Spark {spark}" for spark, releases in tried.items() for release in releases
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
