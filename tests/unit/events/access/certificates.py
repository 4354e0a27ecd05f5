"""Certificates for tests, as files."""

from __future__ import annotations

import os
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


def write_certificate(authority: trustme.CA, folder: Path, name: str, password: str | None = None) -> None:
    """Write `client.pem` and `client.key` for `name` into `folder`, each as a new file. `password` encrypts the key."""
    issued = authority.issue_cert("127.0.0.1", common_name=name)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    replace(folder / "client.pem", b"".join(each.bytes() for each in issued.cert_chain_pems))
    replace(
        folder / "client.key",
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
    )


def replace(path: Path, content: bytes) -> None:
    """Replace a file as a rotation does: in one step, by a new inode."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)  # noqa: PTH105 - the step that counts
