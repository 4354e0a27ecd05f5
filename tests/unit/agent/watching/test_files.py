"""The watcher uses AWS's configuration as the locks do."""

import os
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import files
from lakewarden.agent.watching.catalog import TableName
from lakewarden.agent.watching.files import Buckets, UnreadableTableError
from lakewarden.agent.watching.rest_catalog import RestCatalog


@pytest.mark.parametrize(("given", "region"), [("eu-west-1", "eu-west-1"), (None, "us-east-1")])
def test_a_watched_table_is_read_in_the_region_that_is_configured(
    given: str | None, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the locks' store, whose tests have the other places of a region (`tests/contract/test_s3_connection.py`)."""
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    if given is not None:
        monkeypatch.setenv("AWS_REGION", given)
    clients: list[dict[str, Any]] = []
    monkeypatch.setattr(files, "S3Store", lambda *_, config, **__: clients.append(config))

    Buckets(Settings()).table("s3://lake/trips")

    assert [each["region"] for each in clients] == [region]


@pytest.mark.parametrize(
    "value", [" ", "not a URL", "http://", "http://[::1", "http://h:99999", "\n", "\0", "é"]
)
@pytest.mark.parametrize("name", ["s3.endpoint", "client.region", "s3.access-key-id", "s3.session-token"])
async def test_what_a_catalog_vends_is_used_or_refused(name: str, value: str) -> None:
    """obstore panics for some of them, which can end the process."""
    access = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "k", name: value}

    with pytest.raises(UnreadableTableError):
        await Buckets(Settings()).table("s3://lake/trips", access).read("log")


@pytest.mark.parametrize(
    ("uri", "region", "why"),
    [
        ("s3://a b/t", "eu-west-1", "not the name of a bucket: 'a b'"),
        ("s3://lake/t", "x y", "not the name of a region"),
    ],
)
def test_a_name_that_no_request_can_have_is_refused(
    uri: str, region: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)

    with pytest.raises(UnreadableTableError, match=why):
        Buckets(Settings()).table(uri)


@pytest.mark.parametrize("settings", [{}, {"s3_endpoint": "http://127.0.0.1:1"}], ids=["", "endpoint"])
@pytest.mark.parametrize(
    ("config", "profile", "why"),
    [
        ("", "nope", r"config profile \(nope\) could not be found"),
        ("[default\nregion", "", "Unable to parse config file"),
        ("[profile p]\ncredential_process = false", "p", "custom-process"),
    ],
)
async def test_a_wrong_configuration_of_aws_is_named(
    *, config: str, profile: str, why: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the watcher needs it for: the files, or a signature."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    catalog = RestCatalog("prod", {"uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"}, timeout=60.0)
    expected = f"check credentials, region and endpoint of AWS: .*{why}"

    with pytest.raises(UnreadableTableError, match=expected):
        await Buckets(Settings(**settings)).table("s3://lake/trips").read("log")
    with pytest.raises(UnreadableTableError, match=expected):
        await catalog.load(TableName("prod", ("air",), "flights"), None)
