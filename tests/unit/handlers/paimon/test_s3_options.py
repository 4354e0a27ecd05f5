"""How pypaimon's options and AWS's variables become those of Java Paimon."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.s3_options import PaimonS3Options, java_options, s3_options

KEYS = {"s3.access-key": "key", "s3.secret-key": "secret"}

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "its key",
    "AWS_SECRET_ACCESS_KEY": "its secret",
    "AWS_SESSION_TOKEN": "its token",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ENDPOINT_URL": "http://minio:9000",
}


@pytest.mark.parametrize("prefix", ["s3.", "s3a.", "fs.s3.", "fs.s3a."])
@pytest.mark.parametrize("joint", ["-", "."])
def test_each_spelling_is_known(prefix: str, joint: str) -> None:
    options = {
        f"{prefix}access{joint}key": "key",
        f"{prefix}secret{joint}key": "secret",
        f"{prefix}session{joint}token": "token",
        f"{prefix}region": "us-east-1",
        f"{prefix}endpoint": "minio:9000",
    }
    assert s3_options(options, {}) == PaimonS3Options(
        "https://minio:9000", "us-east-1", "key", "secret", "token", path_style=False
    )


def test_variables_fill_in_what_the_options_lack() -> None:
    assert s3_options({}, VARIABLES) == PaimonS3Options(
        "http://minio:9000", "eu-west-1", "its key", "its secret", "its token", path_style=False
    )
    assert s3_options({"s3.endpoint": "http://other"}, VARIABLES).endpoint == "http://other"


def test_a_key_never_gets_the_secret_or_the_token_of_another_one() -> None:
    found = s3_options({"s3.access-key": "key"}, VARIABLES)

    assert (found.access_key, found.secret_key, found.session_token) == ("key", None, None)


def test_java_paimon_gets_its_own_names_beside_the_given_ones() -> None:
    options = {**KEYS, "s3.region": "us-east-1", "s3.path-style-access": "true", "other": "kept"}

    assert java_options(options, {"AWS_SESSION_TOKEN": "of another key"}) == {
        **options,
        "s3.endpoint.region": "us-east-1",
        "s3.path.style.access": "true",
    }
    assert java_options({}, VARIABLES) == {
        "s3.endpoint": "http://minio:9000",
        "s3.endpoint.region": "eu-west-1",
        "s3.access-key": "its key",
        "s3.secret-key": "its secret",
        "s3.session.token": "its token",
        "s3.path.style.access": "false",
    }


def test_without_keys_the_error_names_where_they_are_looked_for() -> None:
    with pytest.raises(
        ValueError, match=r"give s3\.access-key and s3\.secret-key .* or set AWS_ACCESS_KEY_ID"
    ):
        java_options({"s3.access-key": "alone"}, {})
