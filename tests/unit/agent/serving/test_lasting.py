"""What lives long is frozen, so that full garbage collections stay short."""

import pytest

from lakewarden.agent.serving import lasting
from lakewarden.agent.serving.lasting import FREEZES, GROWN_BYTES, FullCollections, Lasting
from lakewarden.agent.settings import Settings

COLLECT_ALL = ["unfreeze", "collect", "freeze"]


class Recorder:
    """Stands for the module `gc`. The real one would freeze what the tests have."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def collect(self, generation: int = 2) -> None:
        self.calls.append("collect" if generation == 2 else "collect young")

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(lasting, "gc", found)
    return found


def test_the_state_is_frozen_each_time_it_has_grown(recorder: Recorder) -> None:
    collections = FullCollections()
    collections.note(GROWN_BYTES - 1)
    assert recorder.taken() == []
    collections.note(GROWN_BYTES)
    assert recorder.taken() == ["collect young", "freeze"]
    collections.note(2 * GROWN_BYTES - 1)
    assert recorder.taken() == []


def test_growth_counts_from_the_smallest_size_since_the_last_freeze(recorder: Recorder) -> None:
    """Transactions come and go: what was frozen is freed, and what comes next is not frozen yet."""
    collections = FullCollections()
    collections.note(4 * GROWN_BYTES)
    collections.note(GROWN_BYTES)
    recorder.taken()
    collections.note(2 * GROWN_BYTES)
    assert recorder.taken() == ["collect young", "freeze"]


def test_after_many_freezes_everything_is_collected(recorder: Recorder) -> None:
    """A cycle of references that was frozen is collected then."""
    collections = FullCollections()
    for _ in range(FREEZES - 1):
        collections.freeze()
    assert "unfreeze" not in recorder.taken()
    collections.freeze()
    assert recorder.taken() == COLLECT_ALL
    collections.freeze()
    assert recorder.taken() == ["collect young", "freeze"]


def test_the_replayed_state_is_frozen_and_a_session_leaves_nothing(recorder: Recorder) -> None:
    kept = Lasting(Settings(tables=("s3://lake/*",)), FullCollections())
    kept.mark_ready()
    assert recorder.taken() == ["collect young", "freeze"]
    kept.note_memory(GROWN_BYTES)
    assert recorder.taken() == ["collect young", "freeze"]
    kept.collect_garbage()
    assert recorder.taken() == COLLECT_ALL


def test_an_agent_that_shares_its_process_freezes_nothing(recorder: Recorder) -> None:
    kept = Lasting(Settings(tables=("s3://lake/*",)))
    kept.mark_ready()
    kept.note_memory(4 * GROWN_BYTES)
    kept.collect_garbage()
    assert recorder.taken() == []
