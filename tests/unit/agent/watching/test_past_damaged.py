"""What `assess` calls known is true, whatever is dropped, moved, garbled or misdated: rule 0 of handlers/assessment.py."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings, strategies as st

from lakewarden.agent.operators import text as view_text
from lakewarden.agent.operators.assess import picture
from lakewarden.agent.watching.files import UnreadableTableError
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import Assessment, Rests, assess
from tests.tuned import tuned
from tests.unit.agent.watching.test_odd_pieces import RAW
from tests.unit.agent.watching.written_tables import (
    BEGAN,
    FORMATS,
    Files,
    History,
    Written,
    avro,
    instant,
    write,
)

LATER = 1_800_000_000.0
COPIED = LATER - 50_000


def histories() -> st.SearchStrategy[History]:
    def build(behind: list[int], lost: list[int]) -> History:
        commits = tuple(Written(number, min(each, number)) for number, each in enumerate(behind))
        return History(commits, tuple(sorted({each for each in lost if each < len(commits)})))

    return st.builds(
        build, st.lists(st.integers(0, 2), min_size=1, max_size=7), st.lists(st.integers(0, 6), max_size=3)
    )


def commits_of(files: Files, form: str) -> list[str]:
    """The files with a commit each, the oldest first."""
    return sorted(filter(COMMIT[form].fullmatch, files))


COMMIT = {
    "delta": re.compile(r"_delta_log/\d{20}\.json"),
    "paimon": re.compile(r"snapshot/snapshot-\d+"),
    "iceberg": re.compile(r"metadata/snap-\d+\.avro"),
    "hudi": re.compile(r"\.hoodie/timeline/(\d{17})_(\d{17})\.commit"),
}


def drop_newest(files: Files, form: str, number: int) -> None:
    """Other files still name the newest commit. Without them, or in Hudi, the table is one without it."""
    if form == "iceberg" and "metadata/version-hint.text" in files:
        files["metadata/version-hint.text"] = b"2", files["metadata/version-hint.text"][1]
    elif (
        form != "hudi"
        and len(commits_of(files, form)) > 1
        and (is_copied(files) or HINT[form] in "".join(files))
    ):
        del files[commits_of(files, form)[-1]]


HINT = {"delta": ".crc", "paimon": "LATEST", "iceberg": "version-hint.text"}


def is_copied(files: Files) -> bool:
    return all(at >= COPIED for _, at in files.values())


Damage = Callable[[Files, str, int], None]


def drop(files: Files, form: str, number: int) -> None:
    """An inner commit's file; of Hudi it would be an archived or pending one, and of Iceberg a list of manifests."""
    inner = commits_of(files, form)[1:-1]
    if inner and form != "hudi":
        del files[inner[number % len(inner)]]


def drop_oldest(files: Files, form: str, number: int) -> None:
    for each in commits_of(files, form)[: number % len(commits_of(files, form))]:
        if form in ("delta", "paimon"):  # the others would have metadata, or an archive, that say so
            del files[each]


def garble(files: Files, form: str, number: int) -> None:
    names = commits_of(files, form)
    files[names[number % len(names)]] = b"\x00{", files[names[number % len(names)]][1]


def garble_a_manifest(files: Files, form: str, number: int) -> None:
    names = [each for each in files if "manifest-" in each] or commits_of(files, form)
    files[names[number % len(names)]] = b"Obj\x01", files[names[number % len(names)]][1]


def misdate(files: Files, form: str, number: int) -> None:
    """A clock 90 days behind, or a time in another unit."""
    field = {"delta": b'"timestamp": ', "paimon": b'"timeMillis": ', "iceberg": b'"timestamp-ms": '}.get(form)
    names = ["metadata/v1.metadata.json"] if form == "iceberg" else commits_of(files, form)
    path = names[number % len(names)]
    if field is None or field not in files[path][0]:
        return
    parts = files[path][0].split(field)
    at = 1 + number % (len(parts) - 1)
    digits = len(parts[at]) - len(parts[at].lstrip(b"-0123456789"))
    time = int(parts[at][:digits])
    wrong = (time - 90 * 86_400_000, time * 1000, 0, time + 3 * 86_400_000)[number % 4]
    parts[at] = str(wrong).encode() + parts[at][digits:]
    files[path] = field.join(parts), files[path][1]


NUMBER = re.compile(
    rb'("(?:executionTimeMs|timestamp|size|modificationTime|timeMillis|timestamp-ms)": "?)-?[0-9]+'
)


def absurd(files: Files, form: str, number: int) -> None:
    """A number that can't be true: the kind of each that a file gives."""
    names = ["metadata/v1.metadata.json"] if form == "iceberg" else commits_of(files, form)
    path = names[number % len(names)]
    found = [*NUMBER.finditer(files[path][0])]
    if found:
        match = found[number % len(found)]
        wild = (b"-5", b"1" + b"0" * 15, b"9" * 19, b"9" * 40, b"0")[number % 5]
        wild = b"-5" if b"executionTimeMs" in match[1] and wild == b"0" else wild
        body = files[path][0]
        files[path] = body[: match.start()] + match[1] + wild + body[match.end() :], files[path][1]


SCALAR = re.compile(rb'"(?!format-version|location|path|file_path)[^"]*": ("[^"\\\\]*"|-?[0-9.]+)(?=[,}\]])')


def odd(files: Files, form: str, number: int) -> None:
    """A value that Python's JSON refuses, or makes into something else."""
    names = ["metadata/v1.metadata.json"] if form == "iceberg" else commits_of(files, form)
    path = names[number % len(names)]
    body = files[path][0]
    if found := [*SCALAR.finditer(body)]:
        start, end = found[number % len(found)].span(1)
        files[path] = body[:start] + [*RAW.values()][number % len(RAW)] + body[end:], files[path][1]


def copy(files: Files, form: str, number: int) -> None:
    """Every file gets the time of the copy, in any order. A copy may lack the hints."""
    for at, path in enumerate([*files]):
        files[path] = files[path][0], COPIED + (at * 7 + number) % 13
        if number % 2 and path.endswith(tuple(HINT.values())):
            del files[path]


def hide_what_was_read(files: Files, form: str, number: int) -> None:
    names = commits_of(files, form)
    path = names[number % len(names)]
    # The last one is a version that no table has.
    field, instead = ((b'"readVersion"', b'"x"'), (b'"readVersion": ', b'"readVersion": -9'))[number % 2]
    files[path] = files[path][0].replace(field, instead), files[path][1]


def respell(files: Files, form: str, number: int) -> None:
    """A data file in the table has another path than the usual one."""
    names = commits_of(files, form)
    path = names[number % len(names)]
    if form == "delta":
        files[path] = files[path][0].replace(b'"part-', b'"./part-'), files[path][1]


def other_zone(files: Files, form: str, number: int) -> None:
    """Writers of Hudi in another zone: by the store's clock, all was so much earlier or later."""
    if form == "hudi":
        for path, (body, at) in files.items():
            files[path] = body, at + (number % 28 - 14) * 3600


def completed_in_another_zone(files: Files, form: str, number: int) -> None:
    """Hudi 1.0.1 names a completion in another zone than its instant."""
    for path in commits_of(files, form) if form == "hudi" else ():
        body, at = files.pop(path)
        completion = instant(at + (number % 12 + 1) * 3600)
        files[f"{path.partition('_')[0]}_{completion}.commit"] = body, at


def out_of_reach(files: Files, form: str, number: int) -> None:
    """A data file is elsewhere: a shallow clone, a data path of its own."""
    if form == "delta":
        names = commits_of(files, form)
        path = names[number % len(names)]
        elsewhere = (b"s3://other/part-", b"/part-", b"../part-")[number % 3]
        files.pop(f"part-{int(path[-25:-5])}.parquet", None)
        files[path] = files[path][0].replace(b'"part-', b'"' + elsewhere), files[path][1]
    elif form == "iceberg":
        fields = json.loads(files["metadata/v1.metadata.json"][0])
        fields["properties"] = {"write.object-storage.enabled": "true"}
        files["metadata/v1.metadata.json"] = json.dumps(fields).encode(), LATER - 60_000


def branch(files: Files, form: str, number: int) -> None:
    """The newest commits become those of a branch; their files stay."""
    if form == "iceberg":
        fields = json.loads(files["metadata/v1.metadata.json"][0])
        fields["current-snapshot-id"] = 1 + number % len(fields["snapshots"])
        files["metadata/v1.metadata.json"] = json.dumps(fields).encode(), LATER - 60_000
    elif form == "paimon":
        files["branch/branch-b/snapshot/snapshot-1"] = b"{}", LATER - 60_000
        files["bucket-0/of-the-branch.parquet"] = b"1", LATER - 60_000


def copy_soon(files: Files, form: str, number: int) -> None:
    """Every file gets the time of a copy that was made minutes after the newest commit."""
    end = max(at for at in (files[each][1] for each in commits_of(files, form)))
    for at, path in enumerate([*files]):
        files[path] = files[path][0], end + 150 + (at * 7 + number) % 3


def copy_and_go_on(files: Files, form: str, number: int) -> None:
    """The table was copied between two commits, and was written to from then on."""
    times = [files[each][1] for each in commits_of(files, form)]
    moved = times[number % len(times)] + 150
    for at, path in enumerate([*files]):
        if files[path][1] <= moved:
            files[path] = files[path][0], moved + (at * 7 + number) % 3


def empty(files: Files, form: str, number: int) -> None:
    """A file has no bytes."""
    path = sorted(files)[number % len(files)]
    files[path] = b"", files[path][1]


def nest(files: Files, form: str, number: int) -> None:
    """Another table lies in a folder of this one."""
    other = [*FORMATS.values()][number % len(FORMATS)]
    folder = {"delta": "", "iceberg": "data/", "paimon": "bucket-0/", "hudi": ""}[form]
    nested = ("other/", "day=2/other/")[number % 2]
    for path, content in other(History(tuple(Written(each, 0) for each in range(3)), (1,))).items():
        files[f"{folder}{nested}{path}"] = content


def share(files: Files, form: str, number: int) -> None:
    """Another table of a catalog has the same location."""
    if form == "iceberg":
        files["metadata/snap-99.avro"] = (
            avro([{"manifest_path": "file:/t/metadata/manifest-99.avro"}]),
            BEGAN + 700,
        )
        files["data/of-the-other.parquet"] = b"1", BEGAN + 690


def double(files: Files, form: str, number: int) -> None:
    """A backup of a file beside it, whose name differs in case, zeros or its end."""
    names = [each for each in commits_of(files, form) if not each.startswith("metadata")] or [
        "metadata/v1.metadata.json"
    ]
    path = names[number % len(names)]
    folder, _, name = path.rpartition("/")
    digits = re.sub(r"\d+", lambda found: f"0{found[0]}", name, count=1)
    other = (name.upper(), digits, f"{name}.bak", f"copy of {name}", name.replace("0000000000", "00"))[
        number % 5
    ]
    if other != name:
        garbled = b"{}" if number % 2 else files[path][0]
        files[f"{folder}/{other}"] = garbled, files[path][1]


def move_zone(files: Files, form: str, number: int) -> None:
    """Writers of Hudi are in another zone from some instant on."""
    if form == "hudi":
        names = sorted(each for each in files if each.startswith(".hoodie/timeline/"))
        for path in names[number % len(names) :]:
            files[path] = files[path][0], files[path][1] + (number % 5 - 2) * 3600


def run_back(files: Files, form: str, number: int) -> None:
    """The clock of a writer of Hudi was behind for one instant, and its names are."""
    if form != "hudi":
        return
    names = commits_of(files, form)
    path = names[number % len(names)]
    began, ended = COMMIT[form].fullmatch(path).groups()  # type: ignore[union-attr]
    behind = (120, 300, 1_200, 3_600)[number % 4]
    renamed = f".hoodie/timeline/{earlier(began, behind)}"
    files[f"{renamed}.commit.requested"] = files.pop(f".hoodie/timeline/{began}.commit.requested")
    files[f"{renamed}_{earlier(ended, behind)}.commit"] = files.pop(path)


def earlier(name: str, seconds: int) -> str:
    """The name of the instant that was so long before this one."""
    at = datetime.strptime(name.removesuffix("000"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return instant(at.timestamp() - seconds)


def checkpoint(files: Files, form: str, number: int) -> None:
    """A checkpoint is cut, or that of another table."""
    if form == "delta":
        version = (2, 3, 40)[number % 3]
        others = {"metaData": {"schemaString": '{"fields":[]}', "partitionColumns": ["z"]}}
        body = (b"PAR1", b"", json.dumps(others).encode())[number // 3 % 3]
        files[f"_delta_log/{version:020d}.checkpoint.parquet"] = body, BEGAN
        files["_delta_log/_last_checkpoint"] = b'{"version": 40}', BEGAN


DAMAGES: tuple[Damage, ...] = (
    drop, drop_oldest, drop_newest, garble, garble_a_manifest, misdate, absurd, odd, copy, hide_what_was_read, other_zone,
    completed_in_another_zone, out_of_reach, respell, branch, copy_soon, copy_and_go_on, empty, nest, share, double, move_zone,
    run_back, checkpoint,
)  # fmt: skip


def assessed(files: Files) -> Assessment | None:
    """None: the table can't be assessed."""
    with tempfile.TemporaryDirectory() as folder:
        write(files, Path(folder))
        try:
            history = anyio.run(lambda: past(Path(folder).as_uri(), tuned(), days=30, now=LATER))
        except UnreadableTableError:
            return None
    found = assess(history)
    assert [*view_text.lines("assess", [found]), picture([history])]
    return found


def check(
    found: Assessment | None, truth: dict[str, float], *, without: frozenset[str] = frozenset()
) -> None:
    if found is None:
        return
    for name, true in truth.items():
        figure = found.figures.get(name)
        if figure is None or name in without:
            continue
        match figure.rests_on:
            case Rests.KNOWN:
                assert figure.value == pytest.approx(true), (name, found)
            case Rests.AT_LEAST:
                assert figure.value, (name, found)
                assert figure.value <= true + 0.1, (name, found)
                assert figure.because, (name, found)
            case Rests.NOT_KNOWN:
                assert figure.value is None
            case Rests.ESTIMATED:
                assert figure.value is not None
    if found.changes and found.changes[0].startswith("nothing:"):
        assert not truth["in_the_way"]
    said = "\n".join(view_text.lines("assess", [found]))
    assert ("nothing to assess" in said) <= (truth["commits"] == 0), said


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=20)
@given(history=histories())
def test_a_whole_table_is_known_where_its_format_says_so(form: str, history: History) -> None:
    found = assessed(FORMATS[form](history))

    assert found is not None
    check(found, history.truth())
    assert found.unread == ()
    known = {
        "delta": {"overlapping", "in_the_way", "lost_files", "known_seconds"},
        "hudi": {"overlapping", "lost_tries"},
    }
    for name in {"commits"} | known.get(form, {"lost_files"}):
        assert found[name].rests_on is Rests.KNOWN, (name, found)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=3)
@given(history=histories(), number=st.integers(0, 100))
def test_no_single_damage_makes_a_known_figure_false(
    form: str, damage: Damage, history: History, number: int
) -> None:
    files = FORMATS[form](history)
    damage(files, form, number)

    mains_alone = damage is branch and form == "iceberg"
    check(assessed(files), history.truth(), without=OF_ALL_BRANCHES if mains_alone else frozenset())


OF_ALL_BRANCHES = frozenset({"commits", "overlapping", "in_the_way", "known_seconds"})
"""Figures of which the main branch has less."""


@pytest.mark.parametrize("examples", [50, pytest.param(1_500, marks=pytest.mark.wide)])
@pytest.mark.parametrize("form", FORMATS)
def test_no_damages_make_a_known_figure_false_together(form: str, examples: int) -> None:
    damage = st.tuples(st.sampled_from(DAMAGES), st.integers(0, 100))

    @settings(max_examples=examples)
    @given(histories(), st.lists(damage, min_size=2, max_size=3))
    def run(history: History, damages: list[tuple[Damage, int]]) -> None:
        files = FORMATS[form](history)
        for damage, number in sorted(
            damages, key=lambda each: each[0] in (odd, empty)
        ):  # the others read the files
            damage(files, form, number)

        found = assessed(files)

        mains_alone = any(damage is branch for damage, _ in damages) and form == "iceberg"
        check(found, history.truth(), without=OF_ALL_BRANCHES if mains_alone else frozenset())

    run()
