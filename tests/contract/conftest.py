"""Fixtures for the clouds and their buckets."""

import pytest

from tests.contract.clouds import AZURE, GOOGLE, S3, SECRET, Cloud, RealBucket
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer


@pytest.fixture(params=[GOOGLE, AZURE], ids=["google", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


@pytest.fixture(params=[GOOGLE, AZURE, S3], ids=["google", "azure", "s3"])
def any_cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


@pytest.fixture
def cloud_credentials(no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(params=["google", "azure"])
def real(request: pytest.FixtureRequest) -> RealBucket:
    if request.param == "google":
        gcs: GcsServer = request.getfixturevalue("gcs_credentials")
        return RealBucket(f"gs://{gcs.bucket()}/locks", gcs.endpoint, "")
    azure: AzureServer = request.getfixturevalue("azure_credentials")
    server, _, account = azure.endpoint.rpartition("/")
    return RealBucket(f"az://{azure.container()}/locks", server, f"/{account}")
