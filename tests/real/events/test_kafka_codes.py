"""The codes that a client knows are those of the Kafka that the tests run."""

import subprocess
from pathlib import Path

import pytest
from aiokafka import errors

from lakewarden.agent.embedded.jars import downloaded, kafka_library
from lakewarden.agent.embedded.jdk import find_java
from lakewarden.events.access.codes import NEWER

pytestmark = [pytest.mark.real, pytest.mark.wide]

PROGRAM = """
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

public class Codes {
    public static void main(String[] arguments) {
        for (Errors each : Errors.values()) {
            System.out.println(each.code() + " " + each + " " + (each.exception() instanceof RetriableException));
        }
    }
}
"""


def test_every_code_of_kafka_has_a_class_and_those_of_ours_are_kafkas(tmp_path: Path) -> None:
    source = tmp_path / "Codes.java"
    source.write_text(PROGRAM)
    jars = downloaded(kafka_library())
    shown = subprocess.run(
        [find_java(), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", source],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kafkas = {int(code): (name, retriable) for code, name, retriable in map(str.split, shown.splitlines())}
    ours = {each.errno: (each.__name__, str(each.retriable).lower()) for each in NEWER}

    assert ours.keys() | errors.kafka_errors.keys() >= kafkas.keys()
    assert {
        code: kafkas[code]
        for code in ours
        if code not in errors.kafka_errors or errors.kafka_errors[code] in NEWER
    } == ours
