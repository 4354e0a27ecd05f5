"""The catalogs of Iceberg that are configured."""

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalog import Catalog, CatalogAnswer, TableName
from lakewarden.agent.watching.files import TIMEOUT_SECONDS, UnreadableTableError
from lakewarden.agent.watching.glue_catalog import GlueCatalog
from lakewarden.agent.watching.rest_catalog import RestCatalog


def catalogs(settings: Settings) -> dict[str, Catalog]:
    """The configured catalogs. Nothing is sent yet."""
    found: dict[str, Catalog] = {}
    for name, secret in settings.catalogs.items():
        properties = {key: value.get_secret_value() for key, value in secret.items()}
        found[name] = _kind(properties["type"])(name, properties, TIMEOUT_SECONDS)
    return found


class _WithoutExtra(Catalog):
    """A catalog whose extra is not installed. It costs its own tables, and no others."""

    async def _load(self, name: TableName, known: CatalogAnswer | None, *, whole: bool) -> CatalogAnswer:  # noqa: ARG002
        raise UnreadableTableError(self._why)

    async def _tables(self, namespace: tuple[str, ...]) -> list[str]:  # noqa: ARG002
        raise UnreadableTableError(self._why)

    @property
    def _why(self) -> str:
        return f"type {self._properties['type']} needs pyiceberg: pip install 'lakewarden[catalogs]', then start again"


def _kind(kind: str) -> type[Catalog]:
    if kind == "rest":
        return RestCatalog
    if kind == "glue":
        return GlueCatalog
    try:
        # Imported here because it takes a second, and pyiceberg is an extra.
        from lakewarden.agent.watching import pyiceberg_catalogs as found
    except ImportError:
        return _WithoutExtra
    return found.SqlCatalog if kind == "sql" else found.HiveCatalog
