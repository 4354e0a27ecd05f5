"""Certificates, keys and passwords, read again when their files change.

A rotation may replace two files one after the other, so a certificate may not belong to its key for a moment. Then, and while
a file can't be read, the last valid content is used and an error is logged once per change.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from lakewarden.events.access.options import Access, AccessError

MAX_SECRET_BYTES = 65_536
"""A larger file is no password: the setting names the wrong file."""

log = logging.getLogger("lakewarden.events.access")

T = TypeVar("T")


def read_secret(option: str, path: str) -> str:
    """The secret in a file, without the line break at its end. `AccessError` names the option and the file."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        secret = content.decode().rstrip("\r\n")
    except OSError as error:
        raise AccessError(f"{option}={path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise AccessError(f"{option}={path} is not text in UTF-8") from None
    if not secret or len(content) > MAX_SECRET_BYTES:
        found = "empty" if not secret else f"larger than {MAX_SECRET_BYTES} bytes"
        raise AccessError(f"{option}={path} is {found}; it must contain the secret alone")
    return secret


def password_file(access: Access, option: str = "sasl_password_file") -> FromFiles[str] | None:
    """The password in `sasl_password_file`, if that is set."""
    path = access.sasl_password_file
    return None if path is None else FromFiles((path,), lambda: read_secret(option, path))


class FromFiles(Generic[T]):
    """A value made from files. `current` makes it again if one of them has changed."""

    def __init__(self, paths: tuple[str, ...], make: Callable[[], T]) -> None:
        self._paths = paths
        self._make = make
        self._state = self._stat()
        self._value = make()

    def current(self) -> T:
        """The value of the files as they are now, or else the last valid one."""
        state = self._stat()
        if state != self._state:
            self._state = state
            try:
                self._value = self._make()
            except AccessError as error:
                log.error("a file has changed and can't be used; its last content is used: %s", error)  # noqa: TRY400 - its cause may quote the file
        return self._value

    def _stat(self) -> list[object]:
        found: list[object] = []
        for path in self._paths:
            try:
                status = Path(path).stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError as error:
                found.append(error.errno)
        return found


class RotatingContext(ssl.SSLContext):
    """A client's TLS context. Each connection uses the certificates and the key that the files contain when it is made."""

    _files: FromFiles[ssl.SSLContext]

    def __new__(cls, access: Access) -> Self:
        """Read the files. `AccessError` names the one that can't be used."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        paths = (access.ssl_cafile, access.ssl_certfile, access.ssl_keyfile, access.ssl_key_password_file)
        self._files = FromFiles(tuple(path for path in paths if path), lambda: tls_context(access))
        return self

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        """asyncio calls this for each connection."""
        return self._files.current().wrap_bio(*args, **more)


def tls_context(access: Access, name: Callable[[str], str] = str) -> ssl.SSLContext:
    """The TLS context that the files make now. `AccessError` names the option whose file can't be used."""
    context = authorities(access.ssl_cafile, name("ssl_cafile"))
    if access.ssl_certfile is None:
        return context
    password = ""
    if access.ssl_key_password_file is not None:
        password = read_secret(name("ssl_key_password_file"), access.ssl_key_password_file)
    for option, path in (("ssl_certfile", access.ssl_certfile), ("ssl_keyfile", access.ssl_keyfile)):
        if path is not None:
            _require_readable(name(option), path)
    try:
        # Always with a password: without one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(access.ssl_certfile, access.ssl_keyfile, password=lambda: password)
    except ssl.SSLError as error:
        raise AccessError(
            f"the certificate {name('ssl_certfile')}={access.ssl_certfile} and its key can't be used: "
            f"{error.reason or 'no PEM file, or a wrong password of the key'}; both must be PEM, belong together, "
            f"and the key's password be in {name('ssl_key_password_file')}"
        ) from None
    return context


def authorities(path: str | None, option: str) -> ssl.SSLContext:
    """A context that trusts the authorities in the file, or the system's."""
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        why = error.strerror if not isinstance(error, ssl.SSLError) else "no certificate in it"
        raise AccessError(f"{option}={path} can't be read: {why or error}; it must be a PEM file") from None


def _require_readable(option: str, path: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise AccessError(f"{option}={path} can't be read: {error.strerror or error}") from None
