"""The choice of Java, and the errors without one. Fake `java` programs print what real ones do."""

from pathlib import Path

import pytest

from lakewarden.agent.embedded.jdk import JdkMissing, find_java


def _fake_java(folder: Path, answer: str, status: int = 0) -> Path:
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    "answer",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'openjdk version "17" 2021-09-14',
        'openjdk version "21-ea" 2023-09-19',
        'java version "24.0.2" 2025-07-15',
    ],
)
def test_java_17_and_newer_on_path_is_found(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = _fake_java(tmp_path / "bin", answer)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")

    assert find_java() == java


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's and Kafka's own scripts choose in the same way."""
    on_path = _fake_java(tmp_path / "path", 'openjdk version "21.0.1"')
    at_home = _fake_java(tmp_path / "home" / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    assert find_java() == at_home


@pytest.mark.parametrize(
    "answer, status, problem",
    [
        ('openjdk version "11.0.27" 2025-04-15', 0, "is Java 11, but Kafka needs 17"),
        ('java version "1.8.0_392"', 0, "is Java 8, but Kafka needs 17"),
        ("Unable to locate a Java Runtime.", 1, "-version printed no version"),
    ],
)
def test_the_error_for_an_unsuitable_java_says_what_to_install(
    answer: str, status: int, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "bin", answer, status).parents[1]))

    with pytest.raises(JdkMissing, match=rf"{problem}.*install a JDK 17 or newer \(.*apt install") as caught:
        find_java()

    assert "\n" not in str(caught.value)


def test_the_error_without_any_java_names_the_searched_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JdkMissing, match=r"^no Java found on PATH: install a JDK 17"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JdkMissing, match=rf"^no Java found in JAVA_HOME={tmp_path}: install a JDK 17"):
        find_java()
