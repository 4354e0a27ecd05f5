"""Tests of the public surface: what was released stays, or the changelog names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.release.surface import FOLDER, surface, undocumented

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


@pytest.mark.parametrize("record", sorted(FOLDER.glob("*.txt")), ids=lambda record: record.stem)
def test_nothing_of_a_recorded_version_vanishes_without_a_line_in_the_changelog(record: Path) -> None:
    names = record.read_text(encoding="utf-8")
    assert len(names.splitlines()) > 500
    assert undocumented(names, set(surface()), CHANGELOG.read_text(encoding="utf-8")) == []


def test_a_name_that_vanishes_is_reported_until_the_changelog_has_it() -> None:
    recorded = "setting drift_seconds\nsetting tables\n"
    assert undocumented(recorded, {"setting tables"}, "- Faster.\n") == ["setting drift_seconds"]
    assert undocumented(recorded, {"setting tables"}, "- Removed: `drift_seconds`.\n") == []
