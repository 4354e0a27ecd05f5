"""Certificates, keys and passwords in files: what can be used, rotation, and what happens to a file that can't be used."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
import trustme

from lakewarden.events.access import Access, AccessError, client_arguments, read_password_again, stop_client
from lakewarden.events.access.files import FromFiles, RotatingContext, read_secret
from tests.unit.events.access.certificates import replace, write_certificate

PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def _access(folder: Path, **more: str) -> Access:
    return Access(
        security_protocol="SSL",
        ssl_cafile=str(folder / "ca.pem"),
        ssl_certfile=str(folder / "client.pem"),
        ssl_keyfile=str(folder / "client.key"),
        **more,
    )


@pytest.fixture
def folder(tmp_path: Path, authority: trustme.CA) -> Path:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    write_certificate(authority, tmp_path, "first")
    return tmp_path


def test_a_new_connection_presents_the_certificate_that_the_files_contain_now(
    folder: Path, authority: trustme.CA
) -> None:
    context = RotatingContext(_access(folder))

    assert _presented(context, authority) == "first"
    write_certificate(authority, folder, "second")
    assert _presented(context, authority) == "second"


def test_a_certificate_whose_key_is_not_rotated_yet_is_used_when_both_are(
    folder: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    context = RotatingContext(_access(folder))
    first_key = (folder / "client.key").read_bytes()
    write_certificate(authority, folder, "second")
    second_key = (folder / "client.key").read_bytes()
    replace(folder / "client.key", first_key)

    with caplog.at_level(logging.ERROR):
        assert _presented(context, authority) == "first"
        assert _presented(context, authority) == "first"
    replace(folder / "client.key", second_key)

    assert _presented(context, authority) == "second"
    [line] = caplog.messages
    assert "its last content is used" in line
    assert f"ssl_certfile={folder / 'client.pem'}" in line


def test_an_encrypted_key_is_read_with_its_password_file(folder: Path, authority: trustme.CA) -> None:
    write_certificate(authority, folder, "encrypted", PASSWORD)
    (folder / "password").write_text(PASSWORD + "\n")

    context = RotatingContext(_access(folder, ssl_key_password_file=str(folder / "password")))

    assert _presented(context, authority) == "encrypted"


@pytest.mark.parametrize("password", [None, "wrong"])
def test_an_encrypted_key_without_its_password_is_an_error_and_no_question(
    password: str | None, folder: Path, authority: trustme.CA
) -> None:
    """OpenSSL would ask for it on the terminal."""
    write_certificate(authority, folder, "encrypted", PASSWORD)
    more = {}
    if password is not None:
        (folder / "password").write_text(password)
        more["ssl_key_password_file"] = str(folder / "password")

    with pytest.raises(AccessError, match="the key's password be in ssl_key_password_file") as caught:
        RotatingContext(_access(folder, **more))

    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("name", ["ca.pem", "client.pem", "client.key"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_the_error_of_a_file_that_cannot_be_used_names_it(
    name: str, content: bytes | None, folder: Path
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)

    with pytest.raises(AccessError) as caught:
        RotatingContext(_access(folder))

    assert str(folder / ("client.pem" if name == "client.key" and content is not None else name)) in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("content", "secret"), [(b"hush", "hush"), (b"hush\n", "hush"), (b"hush\r\n", "hush"), (b" h \n", " h ")]
)
def test_a_secret_is_the_file_without_its_last_line_break(
    content: bytes, secret: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(content)

    assert read_secret("sasl_password_file", str(tmp_path / "secret")) == secret


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"x" * 70_000, "is larger than"),
    ],
)
def test_a_file_without_a_secret_is_an_error_that_names_it(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(AccessError, match=why) as caught:
        read_secret("sasl_password_file", str(path))

    assert f"sasl_password_file={path}" in str(caught.value)


def test_a_password_that_was_removed_is_used_until_there_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("first")
    password = FromFiles((str(path),), lambda: read_secret("sasl_password_file", str(path)))

    path.unlink()
    assert password.current() == "first"
    path.write_text("second")
    assert password.current() == "second"


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
async def test_a_client_connects_with_the_password_that_the_file_contains_now(
    kind: str, tmp_path: Path
) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient

    path = tmp_path / "password"
    path.write_text("first")
    access = Access(security_protocol="SASL_PLAINTEXT", sasl_username="me", sasl_password_file=str(path))
    kinds = {"producer": AIOKafkaProducer, "consumer": AIOKafkaConsumer, "admin": AIOKafkaAdminClient}

    client = kinds[kind](**client_arguments(access))
    read_password_again(client, access)
    path.write_text("the second")

    connections = client.client if kind == "producer" else client._client
    used = connections._sasl_plain_password
    await stop_client(client)
    assert used == "the second"


def _presented(context: ssl.SSLContext, authority: trustme.CA) -> str:
    """The common name of the certificate that the client presents in a handshake, in memory."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(accepting)
    authority.configure_trust(accepting)
    accepting.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = server.getpeercert()
    assert certificate is not None
    subject = dict(pair for part in certificate["subject"] for pair in part)  # type: ignore[misc]
    return str(subject["commonName"])
