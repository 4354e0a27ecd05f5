"""Opens the store of a URI, which its scheme chooses, and probes it before a lock is written there."""

import re
from contextlib import AsyncExitStack

import anyio
import structlog

from lakewarden.agent.settings import SCHEMES, Settings
from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.locations import LocationError, parse_location, scheme_of
from lakewarden.agent.stores.port import ConditionalStore, OnRequest
from lakewarden.agent.stores.probe import StoreProbeError, StoreRefusedError, probe
from lakewarden.handlers.lease.conditional import Absent, ReadOutcome, Refused

log = structlog.get_logger()


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


def folder_of(root: str) -> anyio.Path:
    """The folder's path, decoded as the store does: a URI escapes some characters with percent signs."""
    return anyio.Path("/" + parse_location(root).key)


class Stores:
    """Opens and probes each store once. All callers that wait for the same probe get its error."""

    def __init__(
        self, settings: Settings, stack: AsyncExitStack, on_request: OnRequest = lambda *_: None
    ) -> None:
        self._settings = settings
        self._on_request = on_request
        self._stack = stack
        self._open: dict[str, ConditionalStore] = {}
        self._opening: dict[str, anyio.Lock] = {}
        self._failed: dict[str, StoreProbeError] = {}
        self._readers: dict[str, ConditionalStore] = {}
        self._opening_readers: dict[str, anyio.Lock] = {}

    async def for_lock(self, uri: str) -> ConditionalStore:
        """The store of a lock object.

        Raises `StoreUnreachableError` if the store does not answer, `StoreRefusedError` if it refuses access, another
        `StoreProbeError` if it ignores conditions, and `LocationError` if there is no store for the URI. The next call after an
        error probes the store again.
        """
        root = self.root_of(uri)
        if root not in self._open:
            failed_before = self._failed.get(root)
            # One lock per store: a store that is slow to open delays no other one.
            async with self._opening.setdefault(root, anyio.Lock()):
                failed = self._failed.get(root)
                if failed is not None and failed is not failed_before:
                    raise type(failed)(str(failed))
                if root not in self._open:
                    try:
                        self._open[root] = await self._open_probed(root)
                    except StoreProbeError as error:
                        self._failed[root] = error
                        raise
        return self._open[root]

    async def read(self, uri: str) -> ReadOutcome:
        """Read an object, without a probe, which needs the right to write, and without creating a folder."""
        root = self.root_of(uri)
        try:
            if root.startswith("file://") and not await folder_of(root).is_dir():
                return Absent()
            store = self._open.get(root) or await self._reader(root)
        except LocationError:
            raise
        except (OSError, ValueError) as error:
            return Refused(f"the store can't be opened: {error}")
        return await store.read(uri)

    async def _reader(self, root: str) -> ConditionalStore:
        async with self._opening_readers.setdefault(root, anyio.Lock()):
            if root not in self._readers:
                store = self._store(root)
                self._readers[root] = await self._stack.enter_async_context(store)
        return self._readers[root]

    async def _open_probed(self, root: str) -> ConditionalStore:
        if root.startswith("file://"):
            folder = folder_of(root)
            try:
                await folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreRefusedError(
                    f"the folder for locks can't be created: {error.strerror}; create it, or use another: folder={folder}"
                ) from error
        async with AsyncExitStack() as attempt:
            try:
                entered = await attempt.enter_async_context(self._store(root))
            except (OSError, ValueError) as error:
                raise StoreRefusedError(f"the store can't be opened: {error}; store={root}") from error
            await probe(entered, root)
            self._stack.push_async_exit(attempt.pop_all().__aexit__)
        log.info("store.honours-conditions", store=root, keeps_versions=entered.keeps_versions)
        return entered

    def _store(self, root: str) -> ConditionalStore:
        store = open_store(root, self._settings)
        store.on_request = self._on_request
        return store

    def root_of(self, uri: str) -> str:
        """The part of a URI that is opened and probed: the lock root, a bucket, or the folder of a local table's glob."""
        lock_root = self._settings.lock_root
        if lock_root is not None and uri.startswith(lock_root + "/"):
            return lock_root
        scheme, rest = uri.split("://", 1)
        if scheme != "file":
            return f"{scheme}://{rest.split('/', 1)[0]}"
        for glob in self._settings.tables:
            fixed = re.split(r"[*?\[]", glob)[0].rsplit("/", 1)[0] if re.search(r"[*?\[]", glob) else glob
            # A glob such as file:///* allows the whole disk, and the disk's root is no folder for a probe.
            if fixed.startswith("file:///") and uri.startswith(fixed + "/"):
                return fixed
        return uri.rsplit("/", 1)[0]
