"""A folder of a table in its store, with the one conditional write that Paimon's snapshots need: put if absent.

| store | put if absent | version of an object |
| --- | --- | --- |
| disk | a hard link of a finished file, which fails if the name exists | inode, time and size |
| `s3`, `gs` | `If-None-Match: *` through obstore, sent once | ETag |
| others (`hdfs`, `oss`) | what pypaimon does: look, then rename or copy; it isn't fenced | the content |

A temporary file on disk begins with a dot: Java readers parse the number of everything named `snapshot-…`. obstore's retries are
off, because a hidden retry would be refused for the write of its own first attempt.
"""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from lakewarden.events.access.google import google_client
from lakewarden.handlers.lease.store_answers import error_text, put_meaning, shows_no_object
from lakewarden.handlers.paimon.publish import NotWritten, PutRefused, Written
from lakewarden.handlers.paimon.s3_options import s3_options

HINT: Final = "LATEST"
"""Object of the snapshots' folder: the newest one's id, or an older one's if a writer has died."""

REQUEST_SECONDS: Final = 10
"""Timeout of one request. Several of them fit into a grant lease."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_REFUSALS: Final = frozenset({errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content and the version of an object, from one read."""

    body: bytes
    version: str


class FolderStore(Protocol):
    """The objects of one folder, by name. Reads raise `OSError` if the store gives no usable answer."""

    fenced: bool
    """Whether the store refuses a put of an object that exists, however late the put arrives."""

    def put_if_absent(self, name: str, body: bytes) -> Written | NotWritten | PutRefused: ...

    def read(self, name: str) -> StoredObject | None:
        """Return the object, or None if there is none."""
        ...

    def version(self, name: str) -> str | None:
        """Return the object's version, or None if there is no object."""
        found = self.read(name)
        return None if found is None else found.version

    def remove(self, name: str) -> None:
        """Remove the object. It may be gone already."""
        ...

    def replace(self, name: str, body: bytes, seen: StoredObject | None) -> None:
        """Write the object in the place of what was read. On a store that can't compare, another write may come between."""
        ...

    def names(self) -> list[str]: ...


def snapshot_store(table: Any) -> FolderStore:
    """Return the store of an open table's snapshots."""
    return folder_store(table, table.snapshot_manager().snapshot_dir)


def folder_store(table: Any, folder: str) -> FolderStore:
    """Return the store of a folder of an open table."""
    scheme, separator, rest = folder.partition("://")
    if not separator or scheme == "file":
        return LinkedSnapshots(Path(table.file_io.to_filesystem_path(folder)))
    if scheme in {"s3", "s3a", "s3n", "gs"}:
        bucket, _, prefix = rest.partition("/")
        connect = _google if scheme == "gs" else _s3
        with _answers_as_os_errors():
            client = connect(bucket, table.file_io.properties.to_map())
        return ObjectSnapshots(client, prefix, compares_etags=scheme != "gs")
    return UnfencedSnapshots(table.file_io, folder)


class LinkedSnapshots(FolderStore):
    """A folder on a file system with hard links."""

    fenced = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_if_absent(self, name: str, body: bytes) -> Written | NotWritten | PutRefused:
        """Link a finished file to the name."""
        target = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._temporary(name, body) as temporary:
                try:
                    os.link(temporary, target)
                except OSError as error:
                    if error.errno in _NO_LINKS:
                        return PutRefused(f"the file system makes no hard link: {error}")
                    if error.errno in _REFUSALS:
                        return PutRefused(str(error))
                    return NotWritten(str(error))
                return Written(_version_of(temporary))
        except OSError as error:
            return PutRefused(str(error))

    def read(self, name: str) -> StoredObject | None:
        try:
            with (self._folder / name).open("rb") as file:
                return StoredObject(file.read(), _version(os.fstat(file.fileno())))
        except FileNotFoundError:
            return None

    def version(self, name: str) -> str | None:
        try:
            return _version_of(self._folder / name)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def replace(self, name: str, body: bytes, seen: StoredObject | None) -> None:  # noqa: ARG002 - nothing compares here
        """Rename a finished file onto the name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._temporary(name, body) as temporary:
            temporary.replace(self._folder / name)

    def names(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    @contextmanager
    def _temporary(self, name: str, body: bytes) -> Iterator[Path]:
        path = self._folder / f".{name}.{uuid.uuid4().hex}"
        try:
            with path.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)


def _version_of(path: Path) -> str:
    return _version(path.stat())


def _version(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


class ObjectSnapshots(FolderStore):
    """A prefix of a bucket, through an obstore client without retries."""

    fenced = True

    def __init__(self, client: Any, prefix: str, *, compares_etags: bool) -> None:
        self._client = client
        self._prefix = prefix.strip("/")
        self._compares_etags = compares_etags

    def put_if_absent(self, name: str, body: bytes) -> Written | NotWritten | PutRefused:
        import obstore
        from obstore.exceptions import BaseError

        try:
            done = obstore.put(self._client, self._key(name), body, mode="create", use_multipart=False)
        except NotImplementedError as error:
            return PutRefused(error_text(error))
        except (BaseError, OSError) as error:
            why = _why(error)
            match put_meaning(error, name):
                case "refused" | "unusable":
                    return PutRefused(why)
                case "throttled":
                    return PutRefused(why, throttled=True)
                case _:
                    return NotWritten(why)
        return Written(done["e_tag"]) if done["e_tag"] else NotWritten("the answer has no ETag")

    def read(self, name: str) -> StoredObject | None:
        import obstore

        with _answers_as_os_errors():
            try:
                found = obstore.get(self._client, self._key(name))
                return StoredObject(bytes(found.bytes()), found.meta["e_tag"] or "")
            except FileNotFoundError as error:
                _require_answer(error)
                return None

    def remove(self, name: str) -> None:
        import obstore

        with _answers_as_os_errors():
            try:
                obstore.delete(self._client, self._key(name))
            except FileNotFoundError as error:
                _require_answer(error)

    def replace(self, name: str, body: bytes, seen: StoredObject | None) -> None:
        """Send one PUT, conditional where the store compares ETags."""
        import obstore

        mode: Any = "create" if seen is None else "overwrite"
        if seen is not None and self._compares_etags:
            mode = {"e_tag": seen.version}
        with _answers_as_os_errors():
            obstore.put(self._client, self._key(name), body, mode=mode, use_multipart=False)

    def names(self) -> list[str]:
        """Send one LIST for each thousand objects."""
        import obstore

        with _answers_as_os_errors():
            chunks = obstore.list(self._client, prefix=self._prefix)
            return [found["path"].rpartition("/")[2] for chunk in chunks for found in chunk]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


@contextmanager
def _answers_as_os_errors() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(_why(error)) from error


def _why(error: Exception) -> str:
    """The text of an error of obstore. Without keys, it asks the service of an instance's role last."""
    why = error_text(error)
    if "/latest/api/token" not in why and "/latest/meta-data/" not in why:
        return why
    return (
        "no keys of S3 were given, and the service of an instance's role doesn't give any: set s3.access-key and s3.secret-key, "
        "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; a profile in ~/.aws "
        f"isn't read: {why}"
    )


def _require_answer(error: FileNotFoundError) -> None:
    """Raise `OSError` if the error doesn't say that the object is missing: the bucket may be, or a proxy has answered."""
    if not shows_no_object(error):
        raise OSError(error_text(error)) from error


class UnfencedSnapshots(FolderStore):
    """What pypaimon itself does, for stores without a conditional write here."""

    fenced = False

    def __init__(self, file_io: Any, folder: str) -> None:
        self._io = file_io
        self._folder = folder

    def put_if_absent(self, name: str, body: bytes) -> Written | NotWritten | PutRefused:
        """Look, write a temporary file, and rename it."""
        path = f"{self._folder}/{name}"
        try:
            if self._io.exists(path):
                return NotWritten("it exists")
        except OSError as error:
            return PutRefused(str(error))
        try:
            if not self._io.try_to_write_atomic(path, body.decode()):
                return NotWritten("it exists")
        except OSError as error:
            return NotWritten(str(error))
        return Written(body.decode())

    def read(self, name: str) -> StoredObject | None:
        path = f"{self._folder}/{name}"
        if not self._io.exists(path):
            return None
        text = self._io.read_file_utf8(path)
        return StoredObject(text.encode(), text)

    def remove(self, name: str) -> None:
        self._io.delete(f"{self._folder}/{name}")

    def replace(self, name: str, body: bytes, seen: StoredObject | None) -> None:  # noqa: ARG002 - nothing compares here
        self._io.write_file(f"{self._folder}/{name}", body.decode(), overwrite=True)

    def names(self) -> list[str]:
        if not self._io.exists(self._folder):
            return []
        return [
            str(found.path).rstrip("/").rpartition("/")[2] for found in self._io.list_status(self._folder)
        ]


def _s3(bucket: str, options: dict[str, Any]) -> Any:
    from obstore.store import S3Store

    found = s3_options(options, os.environ)
    endpoint = found.endpoint
    if endpoint and not found.path_style:
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    given = {
        "endpoint": endpoint,
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "session_token": found.session_token,
        "region": found.region,
    }
    config: Any = {key: value for key, value in given.items() if value}
    config["checksum_algorithm"] = "SHA256"  # a bucket whose Object Lock has a default retention demands one
    config["virtual_hosted_style_request"] = not found.path_style
    return S3Store(bucket, config=config, **_once(endpoint))


def _google(bucket: str, options: dict[str, Any]) -> Any:
    from obstore.store import GCSStore

    token, expiry = options.get("gcs.access-token"), options.get("gcs.access-token.expiration")
    if not token:
        return google_client(partial(GCSStore, bucket, **_once(None)))
    expires_at = datetime.fromisoformat(expiry).astimezone(UTC) if expiry else None
    credentials: Any = lambda: {"token": token, "expires_at": expires_at}  # noqa: E731
    return GCSStore(bucket, credential_provider=credentials, **_once(None))


def _once(endpoint: str | None) -> dict[str, Any]:
    return {
        "client_options": {
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=REQUEST_SECONDS / 2),
        },
        "retry_config": {"max_retries": 0},
    }
