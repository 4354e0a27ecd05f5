"""A catalog of Iceberg: it knows a table's current metadata, and the tables of a namespace.

| type | request | answer |
| --- | --- | --- |
| `rest` | `GET …/tables/T?snapshots=refs` | the metadata with each branch's newest snapshot; 304 if an ETag hasn't changed |
| `sql` | one SELECT of `iceberg_tables` | the location of the metadata file |
| `glue`, `hive` | `GetTable`, `get_table` | the location of the metadata file, a parameter of the table |

- A catalog is configured by the properties that pyiceberg has for it (docs/watch.md).
- Each failure is an `UnreadableTableError` that names the catalog and the table. No text has a credential. The watcher
  looks again in its next period, so no request is repeated, except once with a new token after a REST server's 401 or 419.
- `TIMEOUT_SECONDS` bounds each request with its answer, `MAX_FILE_BYTES` its size. A catalog has `MAX_REQUESTS` at a time:
  one that hangs delays its own tables only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from lakewarden.agent.settings import catalog_entry
from lakewarden.agent.watching.files import UnreadableTableError

MAX_REQUESTS = 8
"""To one catalog at the same time."""
MAX_PAGES = 1_000
"""Pages of the list of a namespace's tables."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by its catalog. A pattern has wildcards in `table`."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @classmethod
    def of(cls, entry: str) -> TableName | None:
        """The name in an entry of `watch`, or None if it is a URI."""
        found = catalog_entry(entry)
        if found is None:
            return None
        catalog, namespace, table = found
        return cls(catalog, tuple(namespace.split(".")), table)

    def __str__(self) -> str:
        return f"{self.catalog}:{'.'.join(self.namespace)}.{self.table}"


@dataclass(frozen=True, slots=True)
class CatalogAnswer:
    """What a catalog says of a table."""

    pointer: str
    """Changes with each commit: the location of the metadata file."""
    metadata: Mapping[str, Any] | None = None
    """None: it is to be read from that file."""
    is_whole: bool = True
    """Whether the metadata has all snapshots that the catalog lists."""
    etag: str | None = None
    access: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials that the catalog vends for the table's files, as Iceberg's properties of S3. Empty: none."""
    digest: int | None = None
    """Digest of the whole answer. One that is sent again isn't decoded again."""


class Catalog(ABC):
    """One catalog."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        self.name, self._properties, self._timeout = name, properties, timeout
        self.rounds = anyio.CapacityLimiter(MAX_REQUESTS)
        """Looks at tables of this catalog at the same time."""
        self.requests = 0
        """How many were sent."""
        self._open = AsyncExitStack()

    async def load(
        self, name: TableName, known: CatalogAnswer | None, *, whole: bool = False
    ) -> CatalogAnswer:
        """The table; `known` itself if it has not changed since. `whole`: with all snapshots."""
        return await self._bounded(
            lambda: self._load(name, known, whole=whole),
            f"table {'.'.join((*name.namespace, name.table))} of catalog {self.name}",
        )

    async def tables(self, namespace: tuple[str, ...]) -> list[str]:
        return await self._bounded(
            lambda: self._tables(namespace), f"namespace {'.'.join(namespace)} of catalog {self.name}"
        )

    async def close(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._timeout):
            await self._open.aclose()

    async def _bounded(self, request: Callable[[], Awaitable[_Result]], what: str) -> _Result:
        try:
            await self._start()
            with anyio.fail_after(self._timeout):
                return await request()
        except TimeoutError:
            raise UnreadableTableError(f"{what}: no answer within {self._timeout:g} s") from None
        except UnreadableTableError as error:
            raise type(error)(f"{what}: {error}") from error

    async def _start(self) -> None:  # noqa: B027 - most have nothing to do
        """What is to be computed before the first request. No timeout includes it."""

    @abstractmethod
    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer: ...

    @abstractmethod
    async def _tables(self, namespace: tuple[str, ...]) -> list[str]: ...


def pointed(parameters: Mapping[str, str], known: CatalogAnswer | None) -> CatalogAnswer:
    """The answer of a catalog that names the metadata file; `known` itself if that is the same."""
    pointer = parameters.get("metadata_location")
    if pointer is None:
        raise UnreadableTableError("it is not an Iceberg table: its parameter metadata_location is absent")
    return known if known is not None and known.pointer == pointer else CatalogAnswer(pointer)
