"""Catalogs of Iceberg that pyiceberg reads: in a database, and in Hive's metastore. It needs `lakewarden[catalogs]`.

- A request runs in a thread, one at a time for each catalog. One that hangs keeps the thread, so later ones wait for it, and
  fail with their own timeouts. Connections to PostgreSQL and to a metastore have timeouts, so that they free the thread.
- Both answer with the location of the metadata file. The watcher reads it as any other file, with its own access and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import anyio
from anyio import to_thread
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import NoSuchObjectException
from pyiceberg.catalog import sql
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.engine import make_url
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from lakewarden.agent.clock import monotonic
from lakewarden.agent.watching.catalog import Catalog, CatalogAnswer, TableName, pointed
from lakewarden.agent.watching.files import MAX_FILE_BYTES, AbsentFileError, UnreadableTableError
from lakewarden.handlers.lease.store_answers import shorten

_Result = TypeVar("_Result")


class _InThread(Catalog):
    """Asks in a thread."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._thread = anyio.CapacityLimiter(1)

    async def _run(self, request: Callable[..., _Result], *arguments: Any) -> _Result:
        self.requests += 1
        return await to_thread.run_sync(request, *arguments, abandon_on_cancel=True, limiter=self._thread)


class _FoundError(Exception):
    """pyiceberg has found the table."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class PointerOnly:
    """A `FileIO` of pyiceberg that reads no file: `load_table` would read and parse the table's metadata at each look."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """pyiceberg passes its properties."""

    def new_input(self, location: str) -> Any:
        raise _FoundError(location)


class SqlCatalog(_InThread):
    """The table `iceberg_tables` of Iceberg's JdbcCatalog and of pyiceberg's SqlCatalog. Nothing is created in the database."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._opened: sql.SqlCatalog | None = None

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        pointer = await self._run(self._asked, lambda catalog: _location(catalog, name))
        return pointed({"metadata_location": pointer}, known)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        found = await self._run(self._asked, lambda catalog: catalog.list_tables(namespace))
        return [each[-1] for each in found]

    def _asked(self, request: Callable[[sql.SqlCatalog], _Result]) -> _Result:
        try:
            if self._opened is None:
                self._opened = sql.SqlCatalog(self.name, **self._for_pyiceberg())
            return request(self._opened)
        except NoSuchTableError:
            raise AbsentFileError("there is no such table") from None
        except Exception as error:  # noqa: BLE001 - each driver has errors of its own
            self._disconnect()
            cause = getattr(error, "orig", None) or error  # SQLAlchemy's own text repeats the statement
            raise UnreadableTableError(shorten(f"{type(cause).__name__}: {cause}")) from None

    def _for_pyiceberg(self) -> dict[str, str]:
        return {
            **self._properties,
            "uri": _database(self._properties["uri"], self._timeout),
            "init_catalog_tables": "false",
            "py-io-impl": f"{PointerOnly.__module__}.{PointerOnly.__name__}",
        }

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):
                opened.close()

    async def close(self) -> None:
        if self._thread.borrowed_tokens == 0:
            self._disconnect()


def _location(catalog: sql.SqlCatalog, name: TableName) -> str:
    try:
        return catalog.load_table((*name.namespace, name.table)).metadata_location
    except _FoundError as found:
        return found.location


def _database(uri: str, timeout: float) -> str:
    """The URI of a database, with which a file is only read, and a connection to PostgreSQL has timeouts."""
    url = make_url(uri)
    match url.get_backend_name():
        case "sqlite" if "uri" not in url.query:
            return f"sqlite:///file:{quote(url.database or '')}?mode=ro&uri=true"
        case "postgresql" | "postgres":
            seconds = max(2, round(timeout))
            limits = {"connect_timeout": str(seconds), "tcp_user_timeout": str(1000 * seconds)}
            own = url.set(drivername="postgresql+psycopg")
            return own.update_query_dict({**limits, **url.query}).render_as_string(hide_password=False)
        case _:
            return uri


class HiveCatalog(_InThread):
    """Hive's metastore, without authentication: one connection for each call, by the Thrift client that pyiceberg has."""

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        table = await self._run(self._call, "get_table", ".".join(name.namespace), name.table)
        return pointed(table.parameters or {}, known)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        kind = 'hive_filter_field_params__table_type = "ICEBERG"'
        found: list[str] = await self._run(
            self._call, "get_table_names_by_filter", ".".join(namespace), kind, -1
        )
        return found

    def _call(self, method: str, *arguments: str | int) -> Any:
        try:
            transport = self._connected()
            limits = {"string_length_limit": MAX_FILE_BYTES, "container_length_limit": MAX_FILE_BYTES}
            try:
                return getattr(Client(TBinaryProtocol(transport, strictRead=True, **limits)), method)(
                    *arguments
                )
            finally:
                transport.close()
        except Exception as error:  # noqa: BLE001 - what Thrift makes of an answer that is none
            kind = AbsentFileError if isinstance(error, NoSuchObjectException) else UnreadableTableError
            why = getattr(error, "message", None) or str(error) or repr(error)
            raise kind(shorten(f"the metastore: {why}")) from None

    def _connected(self) -> TBufferedTransport:
        """A connection to the first of its addresses that answers."""
        failure: Exception | None = None
        for uri in self._properties["uri"].split(","):
            address = urlsplit(uri.strip())
            transport = TBufferedTransport(
                _BoundedSocket(address.hostname, address.port or 9083, self._timeout)
            )
            try:
                transport.open()
            except TTransportException as error:
                failure = error
            else:
                return transport
        raise failure or ValueError("its uri is empty")


class _BoundedSocket(TSocket):  # type: ignore[misc]  # Thrift has no type annotations
    """Thrift's timeout bounds each read. This bounds the whole answer, in seconds and bytes."""

    def __init__(self, host: str | None, port: int, seconds: float) -> None:
        super().__init__(host, port)
        self.setTimeout(1000 * seconds)
        self._ends_at = monotonic() + seconds
        self._bytes_left = MAX_FILE_BYTES

    def read(self, size: int) -> bytes:
        received: bytes = super().read(size)
        self._bytes_left -= len(received)
        if self._bytes_left < 0:
            raise TTransportException(message=f"the answer has more than {MAX_FILE_BYTES:,} bytes")
        if monotonic() > self._ends_at:
            raise TTransportException(message="the answer takes too long")
        return received
