"""The catalogs of Iceberg that are configured."""

from lakewarden.agent.errors import SettingsError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalog import Catalog
from lakewarden.agent.watching.files import TIMEOUT_SECONDS
from lakewarden.agent.watching.glue_catalog import GlueCatalog
from lakewarden.agent.watching.rest_catalog import RestCatalog


def catalogs(settings: Settings) -> dict[str, Catalog]:
    """The configured catalogs. Nothing is sent yet."""
    found: dict[str, Catalog] = {}
    for name, secret in settings.catalogs.items():
        properties = {key: value.get_secret_value() for key, value in secret.items()}
        found[name] = _kind(name, properties["type"])(name, properties, TIMEOUT_SECONDS)
    return found


def _kind(name: str, kind: str) -> type[Catalog]:
    if kind == "rest":
        return RestCatalog
    if kind == "glue":
        return GlueCatalog
    try:
        # Imported here because it takes a second, and pyiceberg is an extra.
        from lakewarden.agent.watching import pyiceberg_catalogs as found
    except ImportError as error:
        raise SettingsError(
            f"catalogs: {name!r} of type {kind} needs pyiceberg: pip install 'lakewarden[catalogs]' ({error})"
        ) from None
    return found.SqlCatalog if kind == "sql" else found.HiveCatalog
