"""The options that the operators' jobs share. Their errors go to a job's log, so they show no value."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lakewarden.spark_jobs.jobs.options import add_kafka, setting

SECRET = "planted-hunter2"


def kafka_options(text: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="job")
    add_kafka(parser, "settings")
    found: dict[str, object] = parser.parse_args(
        ["--bootstrap-servers", "b:1", "--kafka-options", text]
    ).kafka_options
    return found


def test_kafka_options_are_a_json_object_or_that_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "kafka.json").write_text('{"a": "b"}')

    assert kafka_options('{"a": 1}') == {"a": 1}
    assert kafka_options(f"@{tmp_path}/kafka.json") == {"a": "b"}


@pytest.mark.parametrize(
    "text, complaint",
    [
        (f'{{"sasl_password": "{SECRET}"', "the value is not valid JSON: Expecting ',' delimiter at line 1"),
        (f'["{SECRET}"]', "the value is not a JSON object"),
        ("@/no/such", "/no/such can't be read: No such file or directory"),
    ],
)
def test_the_error_of_kafka_options_shows_none_of_them(
    text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        kafka_options(text)

    printed = capsys.readouterr().err
    assert f"argument --kafka-options: {complaint}" in printed
    assert SECRET not in printed


@pytest.mark.parametrize(
    "text, complaint",
    [
        (f"s3.secret-key:{SECRET}", "s3.secret-key:… is not of the form NAME=VALUE"),
        (SECRET, "the value is not of the form NAME=VALUE"),
    ],
)
def test_the_error_of_a_setting_shows_no_value(text: str, complaint: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        setting(text)

    assert str(caught.value) == complaint
