"""Chooses the store for a URI by its scheme."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError, scheme_of
from lakewarden.agent.stores.port import ConditionalStore

if TYPE_CHECKING:
    from lakewarden.agent.stores.s3 import S3Options

SCHEMES = ("file", "s3", "gs", "az", "abfs")


def open_store(
    uri: str,
    *,
    request_timeout_seconds: float,
    root: str | os.PathLike[str] | None = None,
    s3: S3Options | None = None,
    endpoint: str | None = None,
) -> ConditionalStore:
    """The store of `uri`, to be entered with `async with`.

    `root` is the folder that all `file://` objects must be in. `endpoint` replaces Google's or Azure's own.
    """
    match scheme_of(uri):
        case "file":
            if root is None:
                raise LocationError(
                    f"no root folder is configured for local objects; name in `tables` a folder that contains it: uri={uri!r}"
                )
            return LocalStore(root, request_timeout_seconds=request_timeout_seconds)
        case "s3":
            # Imported here because aiobotocore takes half a second, which simulations and local tables don't need.
            from lakewarden.agent.stores.s3 import S3Store

            return S3Store(s3, request_timeout_seconds=request_timeout_seconds)
        case "gs" | "az" | "abfs":
            # Imported here because obstore is needed for these clouds only.
            from lakewarden.agent.stores.cloud import CloudStore

            return CloudStore(uri, request_timeout_seconds=request_timeout_seconds, endpoint=endpoint)
        case scheme:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise LocationError(f"no store for {scheme}://; use one of {known}: uri={uri!r}")
