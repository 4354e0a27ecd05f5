"""What a look at a Hudi table lists."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import hudi as hudi_module
from lakewarden.agent.watching.files import Buckets, TableFiles
from lakewarden.agent.watching.hudi import HEARTBEAT_SECONDS, HudiFollower
from lakewarden.handlers.hudi.timeline import HEARTBEAT_FOLDER, MARKER_FOLDER
from lakewarden.handlers.hudi.watching import BEAT_SECONDS, Alive, Opened
from lakewarden.handlers.observations import File
from tests.recorded_hudi import recorded

TIME = "20261122135643314"


class Scene:
    """A table on the local disk, its follower, a clock, and the folders that were listed whole."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.listed: list[str] = []
        self._meta = root / ".hoodie"
        self.put("hoodie.properties", recorded("cow-v9", "hoodie.properties"))
        self.put("timeline/.keep")
        below = TableFiles.below

        async def noted(files: TableFiles, path: str) -> dict[str, File]:
            self.listed.append(path)
            return await below(files, path)

        monkeypatch.setattr(TableFiles, "below", noted)
        monkeypatch.setattr(hudi_module, "monotonic", lambda: self.now)
        uri = f"file://{root}"
        self.follower = HudiFollower(uri, Buckets(Settings()).table(uri), grace=0.0)

    def put(self, path: str, body: bytes = b"") -> Path:
        file = self._meta / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return file


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path.resolve(), monkeypatch)


async def test_heartbeats_are_listed_at_once_when_an_instant_is_pending_and_then_every_few_seconds(
    scene: Scene,
) -> None:
    await scene.follower.look()
    assert scene.listed == []

    scene.put(f"timeline/{TIME}.commit.requested")
    await scene.follower.look()
    assert scene.listed == [MARKER_FOLDER, HEARTBEAT_FOLDER]

    scene.now += HEARTBEAT_SECONDS - 1
    await scene.follower.look()
    assert scene.listed[2:] == [MARKER_FOLDER]

    scene.now += 1
    await scene.follower.look()
    assert scene.listed[3:] == [MARKER_FOLDER, HEARTBEAT_FOLDER]


async def test_the_table_is_logged_as_watched_when_its_first_look_is_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins after that line is reported. What the first look finds pending is reported only if it moves."""
    with capture_logs() as logs:
        folder = TableFiles.folder

        async def folder_before_the_line(files: TableFiles, path: str) -> dict[str, File]:
            assert not logs
            return await folder(files, path)

        with monkeypatch.context() as first:
            first.setattr(TableFiles, "folder", folder_before_the_line)
            await scene.follower.look()
        scene.put(f"timeline/{TIME}.commit.requested")
        look = await scene.follower.look()

    assert [each["event"] for each in logs] == ["watch.table"]
    assert [type(each) for each in look.seen] == [Opened]


async def test_a_heartbeat_between_two_listings_is_reported_after_the_second(scene: Scene) -> None:
    heartbeat = scene.put(f".heartbeat/{TIME}")
    await scene.follower.look()
    scene.put(f"timeline/{TIME}.commit.requested")
    look = await scene.follower.look()
    assert [type(each) for each in look.seen] == [Opened]

    later = round(heartbeat.stat().st_mtime) + 60
    scene.now += BEAT_SECONDS - 1
    assert (await scene.follower.look()).seen == []
    os.utime(heartbeat, (later, later))
    scene.now += 1
    assert (await scene.follower.look()).seen == []  # listed a second ago

    scene.now += HEARTBEAT_SECONDS
    assert (await scene.follower.look()).seen == [Alive(TIME, later)]
