"""The watcher uses the same region of S3 as the locks."""

from typing import Any

import pytest

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import files
from lakewarden.agent.watching.files import Buckets


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
