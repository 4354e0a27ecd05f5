"""Tests of a release: public names stay or the changelog names what is gone, one version everywhere, README on an index."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from readme_renderer.markdown import render

from tests.release.__main__ import for_an_index, project
from tests.release.surface import FOLDER, surface, undocumented

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", sorted(FOLDER.glob("*.txt")), ids=lambda record: record.stem)
def test_nothing_of_a_recorded_version_vanishes_without_a_line_in_the_changelog(record: Path) -> None:
    """Before the release, record again: `python -m tests.release.surface`. After it, name each line in the changelog."""
    names = record.read_text(encoding="utf-8")
    assert len(names.splitlines()) > 500
    assert undocumented(record.stem, names, set(surface()), CHANGELOG) == []


@pytest.mark.parametrize(
    ("news", "reported"),
    [
        pytest.param("- Removed: `setting tables`.", False, id="whole"),
        pytest.param("- Removed: `tables`.", True, id="last word"),
        pytest.param("- Removed: `setting tables_root`.", True, id="longer"),
        pytest.param("- Removed: setting tables.", True, id="prose"),
        pytest.param("- Faster.", True, id="other news"),
    ],
)
def test_a_name_that_vanishes_is_reported_until_a_later_version_names_it_whole(
    news: str, reported: bool
) -> None:
    changelog = f"# Changelog\n\n## 0.2.0\n\n{news}\n\n## 0.1.0, 2026-12-01\n\n- Added: `setting tables`.\n"
    recorded = "setting drift_seconds\nsetting tables\n"

    found = undocumented("0.1.0", recorded, {"setting drift_seconds"}, changelog)

    assert found == ["setting tables"] * reported


def test_the_changelog_begins_with_the_version_of_the_project() -> None:
    """The chart's is compared in tests/deploy; wheel, image and `lakewarden --version` take the project's."""
    newest = re.search(r"^## (\d\S*?),? ", CHANGELOG, re.MULTILINE)

    assert newest is not None
    assert newest[1] == project(ROOT)["version"] == version("lakewarden")


def test_readmes_links_work_on_an_index_if_the_repository_is_known() -> None:
    html = render(for_an_index(README, "https://forge.example/lake/warden", "v0.1.0"))

    assert html is not None
    links = re.findall(r'(?:href|src)="([^"#][^"]*)"', html)
    of_files = [link.removeprefix("https://forge.example/lake/warden/") for link in links]
    ways = {tuple(link.split("/", 2)[:2]) for link in of_files}
    assert len(links) > 30
    assert ways == {("blob", "v0.1.0"), ("raw", "v0.1.0")}
    assert [link for link in of_files if not (ROOT / link.split("/", 2)[2].partition("#")[0]).exists()] == []


def test_readme_has_paths_instead_of_links_if_the_repository_is_not_known() -> None:
    text = for_an_index(README, None, "v0.1.0")
    html = render(text)

    assert html is not None
    assert re.findall(r'(?:href|src)="[^#][^"]*"', html) == []
    assert "First jobs (`docs/first-jobs.md`)" in text
