"""The watcher uses the same region of S3 as the locks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import files
from lakewarden.agent.watching.files import Buckets


@pytest.mark.parametrize(
    ("place", "region"),
    [
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_REGION", "eu-west-1"),
        ("profile", "eu-west-1"),
        (None, "us-east-1"),
    ],
)
def test_a_watched_table_is_read_in_the_region_that_is_configured(
    place: str | None, region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Lambda, ECS and many images AWS_REGION is the only one that is set. botocore doesn't read it."""
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(each, raising=False)
    profiles = tmp_path / "config"
    profiles.write_text("[default]\nregion = eu-west-1\n" if place == "profile" else "")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profiles))
    if place is not None and place != "profile":
        monkeypatch.setenv(place, "eu-west-1")
    clients: list[dict[str, Any]] = []
    monkeypatch.setattr(files, "S3Store", lambda *_, config, **__: clients.append(config))

    Buckets(Settings()).table("s3://lake/trips")

    assert [each["region"] for each in clients] == [region]
