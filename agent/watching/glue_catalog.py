"""Catalogs of AWS Glue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from lakewarden.agent.stores.locations import aws_region, read_credentials_again
from lakewarden.agent.watching.catalog import (
    MAX_PAGES,
    MAX_REQUESTS,
    Catalog,
    CatalogAnswer,
    TableName,
    pointed,
)
from lakewarden.agent.watching.files import AbsentFileError, UnreadableTableError
from lakewarden.handlers.lease.store_answers import Answer, shorten


class GlueCatalog(Catalog):
    """The Data Catalog of AWS Glue, with the credentials of the standard chain, or those of the properties."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout: float) -> None:
        super().__init__(name, properties, timeout)
        self._client: Any = None
        self._credentials: Any = None
        """None: those of the properties."""
        self._starting = anyio.Lock()

    async def _start(self) -> None:
        async with self._starting:
            if self._client is not None:
                return
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
            from botocore.exceptions import BotoCoreError

            given = self._properties
            config = AioConfig(
                connect_timeout=self._timeout,
                read_timeout=self._timeout,
                max_pool_connections=MAX_REQUESTS,
                retries={"total_max_attempts": 1},
            )
            session = AioSession(profile=given.get("glue.profile-name"))
            try:
                if not given.get("glue.access-key-id"):
                    self._credentials = await session.get_credentials()
                self._client = await self._open.enter_async_context(
                    session.create_client(
                        "glue",
                        region_name=given.get("glue.region") or aws_region(session),
                        endpoint_url=given.get("glue.endpoint"),
                        aws_access_key_id=given.get("glue.access-key-id"),
                        aws_secret_access_key=given.get("glue.secret-access-key"),
                        aws_session_token=given.get("glue.session-token"),
                        config=config,
                    )
                )
            except (BotoCoreError, ValueError) as error:
                raise UnreadableTableError(shorten(str(error))) from error

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002 - the file has all
        found = await self._ask("get_table", DatabaseName=".".join(name.namespace), Name=name.table)
        return pointed(found.get("Table", {}).get("Parameters", {}), known)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:
        tables: list[str] = []
        more: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            found = await self._ask("get_tables", DatabaseName=".".join(namespace), **more)
            tables += [
                each["Name"]
                for each in found.get("TableList", [])
                if each.get("Parameters", {}).get("table_type", "").upper() == "ICEBERG"
            ]
            if not found.get("NextToken"):
                return tables
            more = {"NextToken": found["NextToken"]}
        raise UnreadableTableError(f"more than {MAX_PAGES:,} pages of tables")

    async def _ask(self, operation: str, **arguments: str) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        catalog = self._properties.get("glue.id")
        self.requests += 1
        try:
            found: dict[str, Any] = await getattr(self._client, operation)(
                **arguments, **({"CatalogId": catalog} if catalog else {})
            )
        except ClientError as error:
            why = error.response.get("Error", {})
            if Answer(400, str(why.get("Code"))).rejects_credentials:
                await read_credentials_again(self._credentials, self._properties.get("glue.profile-name"))
            is_absent = why.get("Code") == "EntityNotFoundException"
            kind = AbsentFileError if is_absent else UnreadableTableError
            raise kind(shorten(f"Glue answers {why.get('Code')}: {why.get('Message')}")) from error
        except (BotoCoreError, OSError) as error:
            raise UnreadableTableError(shorten(str(error) or repr(error))) from error
        return found
