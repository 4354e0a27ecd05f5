"""Choosing a store by the scheme of a location."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError, scheme_of
from lakewarden.agent.stores.memory import MemoryStore
from lakewarden.agent.stores.port import ConditionalStore

if TYPE_CHECKING:
    from lakewarden.agent.stores.s3 import S3Options

SCHEMES = ("file", "memory", "s3", "gs", "az", "abfs")


def open_store(
    uri: str,
    *,
    request_timeout_seconds: float,
    root: str | os.PathLike[str] | None = None,
    s3: S3Options | None = None,
    endpoint: str | None = None,
) -> ConditionalStore:
    """The store that `uri` lies in, to be entered with `async with`.

    `root` is the folder that `file://` objects must lie below, `endpoint` whatever stands in for Google or Azure.
    Each `memory://` store is a world of its own; to share one, build a `MemoryStore` and pass that around.
    """
    match scheme_of(uri):
        case "file":
            if root is None:
                raise LocationError(f"local objects need an allowed root folder; configure one: uri={uri!r}")
            return LocalStore(root, request_timeout_seconds=request_timeout_seconds)
        case "memory":
            return MemoryStore(request_timeout_seconds=request_timeout_seconds)
        case "s3":
            # Only here: aiobotocore takes half a second to import, which neither simulations nor local tables need.
            from lakewarden.agent.stores.s3 import S3Store

            return S3Store(s3, request_timeout_seconds=request_timeout_seconds)
        case "gs" | "az" | "abfs":
            # Likewise: not everybody who has the agent's other stores needs obstore.
            from lakewarden.agent.stores.cloud import CloudStore

            return CloudStore(uri, request_timeout_seconds=request_timeout_seconds, endpoint=endpoint)
        case scheme:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise LocationError(f"no store for {scheme}://; use one of {known}: uri={uri!r}")
