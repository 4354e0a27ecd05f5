"""The values of the label `table`: a bounded number of tables, and one value for all others."""

from __future__ import annotations

OTHER = "other"
"""Not the URI of a table: it has no scheme."""


class TableLabels:
    """Gives the first `limit` tables that something is counted of a value of their own, until the process ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, uri: str) -> str:
        """The label's value of a table."""
        if uri in self._known:
            return uri
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(uri)
        return uri

    def known(self, uri: str) -> str:
        """The same for a name in a refused event, which gets no value of its own: there may be no such table."""
        return uri if uri in self._known else OTHER
