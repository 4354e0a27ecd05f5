"""Chooses the store of a URI by its scheme, and passes its settings."""

from lakewarden.agent.settings import SCHEMES, Settings
from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError, parse_location, scheme_of
from lakewarden.agent.stores.port import ConditionalStore


def open_store(root: str, settings: Settings) -> ConditionalStore:
    """The store of all objects below `root`, to be entered with `async with`. It is not probed."""
    timeout = settings.request_timeout_seconds
    match scheme_of(root):
        case "file":
            return LocalStore(f"/{parse_location(root).key}", request_timeout_seconds=timeout)
        case "s3":
            # Imported here because aiobotocore takes half a second, which simulations and local tables don't need.
            from lakewarden.agent.stores.s3 import S3Options, S3Store

            return S3Store(S3Options.of(settings), request_timeout_seconds=timeout)
        case "gs" | "az" | "abfs" as scheme:
            # Imported here because obstore is needed for these clouds only.
            from lakewarden.agent.stores.cloud import CloudStore

            endpoint = settings.gcs_endpoint if scheme == "gs" else settings.azure_endpoint
            return CloudStore(root, request_timeout_seconds=timeout, endpoint=endpoint)
        case scheme:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise LocationError(f"no store for {scheme}://; use one of {known}: uri={root!r}")
