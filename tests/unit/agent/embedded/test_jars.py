"""The cache of Kafka's jars is complete or absent, even if the download fails or is interrupted."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakewarden.agent.embedded import jars
from lakewarden.agent.embedded.jars import JarsUnavailable, downloaded, kafka_library

KAFKA = kafka_library()


@dataclass(frozen=True)
class FakeArtifact:
    """The part of jgo's artifact that is used: the path of the downloaded jar."""

    path: Path

    def resolve(self) -> Path:
        return self.path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEWARDEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only artifact that jgo resolves."""
    path = tmp_path / "kafka.jar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kafka/Kafka.class", b"bytecode" * 100)
    monkeypatch.setattr(jars, "_resolve", lambda *_: [FakeArtifact(path)])
    return path


@pytest.mark.usefixtures("jar")
def test_jars_are_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[str] = []

    folder = downloaded(KAFKA, progress.append)
    assert [path.name for path in folder.iterdir()] == ["kafka.jar"]
    assert progress[-1].endswith("1 of 1 files, 0 MB")

    monkeypatch.setattr(jars, "_resolve", lambda *_: pytest.fail("downloaded twice"))
    assert downloaded(KAFKA, progress.append) == folder


def test_a_damaged_jar_never_reaches_the_cache(cache: Path, jar: Path) -> None:
    """A proxy truncated the download, or the disk was full."""
    content = bytearray(jar.read_bytes())
    content[60] ^= 0xFF
    jar.write_bytes(content)

    with pytest.raises(JarsUnavailable, match="damaged"):
        downloaded(KAFKA)

    assert not (cache / f"kafka-{jars.KAFKA_VERSION}").exists()


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[str] = []

    def unreachable(*_: object) -> list[FakeArtifact]:
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr(jars, "_resolve", unreachable)

    with pytest.raises(JarsUnavailable, match=r"\(Name or service not known\): check the network") as caught:
        downloaded(KAFKA, progress.append)

    assert "\n" not in str(caught.value)
    assert sum("retrying" in line for line in progress) == jars.ATTEMPTS - 1


@pytest.mark.usefixtures("jar")
def test_files_of_a_killed_download_are_deleted(cache: Path) -> None:
    left = cache / f"kafka-{jars.KAFKA_VERSION}.partial" / "jars" / "half.jar"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")

    folder = downloaded(KAFKA)

    assert [path.name for path in folder.iterdir()] == ["kafka.jar"]
