"""What a table's own history says of its writers: which overlapped, what compute was wasted, and what the gate would change.

| | Delta Lake | Iceberg | Paimon | Hudi |
| --- | --- | --- | --- | --- |
| end | `inCommitTimestamp`, `timestamp` | `timestamp-ms` | `timeMillis` | the completed file |
| start | `executionTimeMs` before the end, or the first data file | the first data file | the same | the instant |
| base | `readVersion` | – (the parent is that of the last retry) | – | – |
| writer | `txn.appId`, `job`, `userName` | streaming query, `flink.job-id`, `spark.app.id` | `commitUser` | query |
| wasted try | data files that no commit names | the same, of killed jobs only | the same | rollback, dead instant |

Each figure says what it rests on (`Rests`):

0. **Known** is what the table says, if all of it was read. Each piece that was not is an `Unread`, and weakens the figures that
   rest on it (`WEAKER`), with its reason. A zero that isn't known is not known: it would deny what was not looked at.
1. **Overlap.** The later commit of two began before the earlier one ended. With a base version that is a fact; by times it is an
   estimate, because writers and stores have clocks of their own, and by the first data file some are missed: the job had begun
   before. Commits of one session follow each other, so they never overlap. Two overlapping commits are in each other's way if
   they share a partition in which one of them replaced or removed files. Two appends never are.
2. **Seconds of a commit** are known from `executionTimeMs` and from Hudi's instants. From the first data file they are at least
   that many.
3. **A wasted try** is known by a Hudi rollback or by data files that no commit names. How long it took is an estimate: a rolled
   back instant as long as the mean of the commits that replaced files in its partitions, at most until its rollback began; files
   as long as commits with as many bytes in the same partition took. The assumption: a loser computes to its end, as the formats'
   own checks demand. An early abort costs less, a try without files isn't seen, and files of a job that was killed count, too.
4. A file that is younger than the `GRACE_SECONDS` before the end of the history, or than three times the longest commit, may
   still be committed, and isn't counted. Neither is one from before the first commit was published, by the store's clock.
5. A history is cut at the limits of its reader, and where the format has removed its log. Nothing is said of what came before.
   It is whole up to its newest commit, unless the table was copied, or another file of it names a newer commit.
6. **What the gate would change.** A commit that is in another one's way is admitted after it, so what was wasted isn't
   computed, and the later one waits for the rest of the earlier one: for at least the time of the overlap. Writers whose
   commits share no partition wait for nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import Final, NamedTuple

GRACE_SECONDS: Final = 600.0
MAX_BACK: Final = 500
"""Earlier commits with which one is compared."""
MAX_LISTED: Final = 20
"""Writers, pairs of writers, partitions."""
OFTEN: Final = 0.2
"""Share of commits in another one's way from which writers should queue from the start."""


class Lack(StrEnum):
    """What an unread piece withholds. `WEAKER` has the figures that it weakens."""

    COMMITS = "commits"
    """Whole commits between others: their times, writers, partitions and files."""
    BEYOND = "commits beyond"
    """Whole commits before or after all that were read."""
    PARTITIONS = "partitions"
    """Partitions of a commit that was read otherwise."""
    NAMES = "names"
    """Names of data files that are in the table: a file that only this piece names looks like a lost one."""
    PLACES = "places"
    """Folders that may have data files, and were not listed."""
    BASE = "base"
    """What a commit had read when it began."""
    TIMES = "times"
    """When a commit was, or how long it took."""
    LOSSES = "losses"
    """Writes that the table knows to have failed."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A piece of a table that could not be read, or lies out of reach. It costs the figures that rest on it, and nothing else."""

    what: str
    """As the subject of a line: `commit 7`, `2 files of snapshot 12`, `the branch staging`."""
    why: str
    """On one line, for operators: no names of Python's errors, no bytes."""
    lacks: frozenset[Lack] = frozenset({Lack.COMMITS})
    version: int | None = None
    """The commit that it is a piece of, if it is of one."""


class Rests(StrEnum):
    """What a figure rests on, the strongest first."""

    KNOWN = "known"
    AT_LEAST = "at least"
    ESTIMATED = "estimated"
    NOT_KNOWN = "not known"


WEAKER: Final[Mapping[Lack, Mapping[Rests, str]]] = {
    Lack.COMMITS: {
        Rests.AT_LEAST: "commits by_gate overlapping in_the_way lost_tries known_seconds",
        Rests.NOT_KNOWN: "lost_files lost_bytes",
    },
    Lack.BEYOND: {
        Rests.AT_LEAST: "commits by_gate overlapping in_the_way lost_tries known_seconds lost_files lost_bytes"
    },
    Lack.PARTITIONS: {Rests.AT_LEAST: "in_the_way lost_files lost_bytes"},
    Lack.NAMES: {Rests.NOT_KNOWN: "lost_files lost_bytes"},
    Lack.PLACES: {Rests.AT_LEAST: "lost_files lost_bytes"},
    Lack.BASE: {Rests.AT_LEAST: "overlapping in_the_way"},
    Lack.TIMES: {Rests.ESTIMATED: "known_seconds lost_files lost_bytes"},
    Lack.LOSSES: {Rests.AT_LEAST: "lost_tries"},
}
"""The figures that an unread piece weakens, and to what (rule 0). Times matter to overlaps, too, if these are found by them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, and what it rests on. Its fields are names in the JSON, as those below."""

    value: float | None
    """None: not known."""
    rests_on: Rests = Rests.KNOWN
    because: tuple[str, ...] = ()
    """Why it isn't known, one line each."""

    @property
    def hedge(self) -> str:
        """What stands before the value in a sentence."""
        return {Rests.AT_LEAST: "at least ", Rests.ESTIMATED: "about "}.get(self.rests_on, "")


@dataclass(frozen=True, slots=True)
class PastCommit:
    """One commit, of the gate's writers, too."""

    version: str
    ended: float
    """Seconds since the epoch, as all times here."""
    writer: str
    operation: str
    partitions: frozenset[str]
    rewritten: frozenset[str] = frozenset()
    """Those in which it replaced or removed files."""
    began: float | None = None
    is_known: bool = False
    """Whether `began` is known, and not only a time at which the job ran already."""
    number: int | None = None
    base: int | None = None
    """The number of the commit that it has read."""
    size: int = 0
    """Bytes of the data files that it has added."""
    is_service: bool = False
    """It rearranges rows, and changes none."""
    is_gates: bool = False
    session: str | None = None
    """Names a writer whose commits follow each other: a streaming query, or a user of Paimon's commits."""
    commit: tuple[str, int] | None = None
    """Names a commit of several snapshots, which `joined` makes one."""
    stored: float | None = None
    """When its own file was written, by the store's clock."""
    unread: tuple[Unread, ...] = ()
    """Its pieces that could not be read, or lie out of reach. A reader reports them here, and raises for a whole commit."""

    @property
    def seconds(self) -> float | None:
        """How long it took, as far as it is known."""
        return None if self.began is None else max(0.0, self.ended - self.began)

    @property
    def published(self) -> float:
        """When it was in the table, by the store's clock if its file is known, else by its writer's."""
        return self.ended if self.stored is None else self.stored


class DataFile(NamedTuple):
    """A data file that a commit has added."""

    path: str
    """Relative to the table's root."""
    partition: str


@dataclass(frozen=True, slots=True)
class LostTry:
    """A write that the table knows to have failed."""

    name: str
    began: float
    partitions: frozenset[str]
    until: float | None = None
    """It had ended by then."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A data file that no commit of the history names."""

    partition: str | None
    """None: its folder doesn't say it."""
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What was read of a table."""

    table: str
    form: str
    commits: Sequence[PastCommit]
    """In their order."""
    lost: Sequence[LostTry] = ()
    leftovers: Sequence[Leftover] | None = None
    """None: the format has rollbacks instead, or `unread` says why they were not looked for."""
    now: float = 0.0
    unread: Sequence[Unread] = ()
    """Its pieces that were not read, but for those of its commits."""
    translations: Sequence[str] = ()
    """Other formats in which a translator shows the table."""


@dataclass(slots=True)
class WriterPair:
    """Two writers whose commits overlapped. The field names are JSON, as those below."""

    later: str
    earlier: str
    overlaps: int = 0
    in_the_way: int = 0


@dataclass(slots=True)
class WriterSum:
    """One writer, as far as the format names writers."""

    writer: str
    commits: int = 0
    services: int = 0
    """How many of these only rearranged."""
    known_seconds: float = 0.0
    estimated_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result."""

    table: str
    format: str
    since: float | None
    until: float | None
    figures: Mapping[str, Figure]
    """
    | name | of |
    | --- | --- |
    | `commits`, `by_gate` | all commits, those through the gate |
    | `overlapping` | commits that overlapped another one |
    | `in_the_way` | those that shared a partition with it, and one of the two replaced files there |
    | `overlap_seconds` | how long the later ones ran beside the earlier ones, of those that were in the way |
    | `lost_tries` | rolled back or dead; absent if the format keeps no such record |
    | `lost_files`, `lost_bytes` | data files that no commit names; absent if the format removes them |
    | `known_seconds`, `estimated_seconds` | of commits: from the table, and since the first data file |
    | `lost_seconds` | what was wasted |
    """
    writers: tuple[WriterSum, ...]
    pairs: tuple[WriterPair, ...]
    partitions: tuple[tuple[str, int], ...]
    """Those in which commits were in each other's way, or files or writes were lost, and how often."""
    changes: tuple[str, ...]
    """What the gate would change."""
    unread: tuple[str, ...]
    """What was not read, and why."""
    translations: tuple[str, ...]
    """Other formats in which a translator shows the table."""
    unknown: tuple[str, ...]
    """What the format doesn't say."""

    def __getitem__(self, name: str) -> Figure:
        return self.figures[name]


@dataclass(slots=True)
class Overlaps:
    """Which commits overlapped (rule 1)."""

    pairs: dict[tuple[str, str], WriterPair] = field(default_factory=dict)
    partitions: Counter[str] = field(default_factory=Counter)
    """How often two commits were in each other's way there; `assess` adds what was lost there."""
    overlapping: set[str] = field(default_factory=set)
    """Versions, as the next ones."""
    in_the_way: set[str] = field(default_factory=set)
    services: int = 0
    """Overlaps in a partition of which a commit only rearranges."""
    by_times: bool = False
    """Some commits could be compared by times only."""
    seconds: float = 0.0
    """How long the later ones ran beside the earlier ones, of those that were in the way."""


def joined(commits: Iterable[PastCommit]) -> list[PastCommit]:
    """Join each snapshot that only rearranges with the one of the same commit, as Paimon's writers make them in pairs."""
    found: list[PastCommit] = []
    places: dict[tuple[str, int], int] = {}
    for each in commits:
        at = None if each.commit is None else places.get(each.commit)
        if at is None or not each.is_service:
            if each.commit is not None:
                places[each.commit] = len(found)
            found.append(each)
            continue
        first = found[at]
        found[at] = replace(
            first,
            ended=max(first.ended, each.ended),
            partitions=first.partitions | each.partitions,
            rewritten=first.rewritten | each.rewritten,
            began=min((began for began in (first.began, each.began) if began is not None), default=None),
            size=first.size + each.size,
            unread=(*first.unread, *each.unread),
        )
    return found


def overlaps_of(commits: Sequence[PastCommit]) -> Overlaps:
    """Find the overlaps of commits, which are in their order."""
    found = Overlaps()
    sessions = {each.session for each in commits}
    alone = len(sessions) == 1 and None not in sessions
    for at, later in enumerate(commits):
        longest = 0.0
        found.by_times |= at > 0 and later.base is None and not alone
        for earlier in _overlapped(commits, at):
            writers = later.writer, earlier.writer
            pair = found.pairs.setdefault(writers, WriterPair(*writers))
            pair.overlaps += 1
            found.overlapping |= {later.version, earlier.version}
            shared = later.partitions & earlier.partitions & (later.rewritten | earlier.rewritten)
            if shared:
                pair.in_the_way += 1
                found.partitions.update(shared)
                found.in_the_way |= {later.version, earlier.version}
                found.services += later.is_service or earlier.is_service
                longest = max(longest, earlier.ended - (later.began or earlier.ended))
        found.seconds += longest
    return found


def assess(history: TableHistory) -> Assessment:
    """Apply the rules of this module to a history."""
    commits, found = history.commits, overlaps_of(history.commits)
    writers = _by_writer(commits)
    unread = _gathered((*history.unread, *(piece for each in commits for piece in each.unread)))
    leftovers = _settled(history)
    if any(Lack.NAMES in each.lacks or Lack.COMMITS in each.lacks for each in unread):
        leftovers = None  # the unread pieces may name them
    for lost in history.lost:
        found.partitions.update(lost.partitions)
    found.partitions.update(each.partition for each in leftovers or () if each.partition is not None)
    figures = _figures(history, found, leftovers, unread)
    by_cost = sorted(writers, key=lambda each: -each.known_seconds - each.estimated_seconds)
    by_trouble = sorted(found.pairs.values(), key=lambda each: (-each.in_the_way, -each.overlaps))
    losses = len(history.lost) + len(leftovers or ())
    return Assessment(
        history.table,
        history.form,
        min((each.ended for each in commits), default=None),
        max((each.ended for each in commits), default=None),
        figures,
        tuple(by_cost[:MAX_LISTED]),
        tuple(by_trouble[:MAX_LISTED]),
        tuple(found.partitions.most_common(MAX_LISTED)),
        tuple(_changes(commits, found, losses, figures)),
        tuple(f"{each.what}: {each.why}" for each in unread),
        tuple(history.translations),
        tuple(_unknown(history)),
    )


def _by_writer(commits: Sequence[PastCommit]) -> list[WriterSum]:
    writers: dict[str, WriterSum] = {}
    for each in commits:
        writer = writers.setdefault(each.writer, WriterSum(each.writer))
        writer.commits += 1
        writer.services += each.is_service
        writer.known_seconds += (each.seconds or 0.0) * each.is_known
        writer.estimated_seconds += (each.seconds or 0.0) * (not each.is_known)
    for writer in writers.values():
        writer.known_seconds = round(writer.known_seconds, 1)
        writer.estimated_seconds = round(writer.estimated_seconds, 1)
    return list(writers.values())


def _gathered(unread: Iterable[Unread]) -> list[Unread]:
    """Pieces for whose lack there is one reason become one."""
    alike: dict[tuple[str, frozenset[Lack]], list[Unread]] = defaultdict(list)
    for each in unread:
        alike[each.why, each.lacks].append(each)
    return [
        each if not others else replace(each, what=f"{each.what}, and {len(others)} more like it")
        for each, *others in alike.values()
    ]


def _figures(
    history: TableHistory,
    found: Overlaps,
    leftovers: Sequence[Leftover] | None,
    unread: Sequence[Unread],
) -> dict[str, Figure]:
    """Rule 0."""
    commits, by_overlaps = history.commits, Rests.ESTIMATED if found.by_times else Rests.KNOWN
    rows: list[tuple[str, float | None, Rests]] = [
        ("commits", len(commits), Rests.KNOWN),
        ("by_gate", sum(each.is_gates for each in commits), Rests.KNOWN),
        ("overlapping", len(found.overlapping), by_overlaps),
        ("in_the_way", len(found.in_the_way), by_overlaps),
    ]
    if history.form == "hudi":
        rows.append(("lost_tries", len(history.lost), Rests.KNOWN))
    else:
        # By the writers' clock, files from before the first commit could count.
        by = Rests.ESTIMATED if commits and commits[0].stored is None else Rests.KNOWN
        rows.append(("lost_files", None if leftovers is None else len(leftovers), by))
        size = None if leftovers is None else sum(each.size for each in leftovers)
        rows.append(("lost_bytes", size, by))
    rows.append(("known_seconds", _seconds(commits, known=True), Rests.KNOWN))
    rows.append(("estimated_seconds", _seconds(commits, known=False), Rests.ESTIMATED))
    figures = {name: _figure(name, value, unread, rests) for name, value, rests in rows}
    figures["overlap_seconds"] = Figure(round(found.seconds, 1), Rests.ESTIMATED)
    lost = figures["lost_tries" if history.form == "hudi" else "lost_files"]
    seconds = None if lost.value is None else _lost_seconds(history, leftovers)
    rests = Rests.NOT_KNOWN if seconds is None else Rests.ESTIMATED
    figures["lost_seconds"] = Figure(None if seconds is None else round(seconds, 1), rests, lost.because)
    return figures


def _seconds(commits: Sequence[PastCommit], *, known: bool) -> float | None:
    """Add up the seconds that are known, or estimated. None: there are commits, and none of them says its seconds."""
    wanted = [each.seconds for each in commits if each.is_known is known]
    timed = [each for each in wanted if each is not None]
    is_silent = bool(wanted) or (known and bool(commits))
    return None if is_silent and not timed else round(sum(timed), 1)


def _figure(name: str, value: float | None, unread: Sequence[Unread], rests: Rests = Rests.KNOWN) -> Figure:
    order, by_times = list(Rests), rests is Rests.ESTIMATED
    because = []
    for each in unread:
        weaker = max(
            (_weaker(name, lack, by_times=by_times) for lack in each.lacks),
            key=order.index,
            default=Rests.KNOWN,
        )
        if weaker is not Rests.KNOWN:
            because.append(f"{each.what}: {each.why}")
            rests = max(rests, weaker, key=order.index)
    denies = not value and rests is not Rests.KNOWN and name != "estimated_seconds"
    if value is None or rests is Rests.NOT_KNOWN or denies:
        return Figure(None, Rests.NOT_KNOWN, tuple(because))
    return Figure(value, rests, tuple(because))


def _weaker(name: str, lack: Lack, *, by_times: bool) -> Rests:
    """What a figure rests on at best, if this is unread."""
    if lack is Lack.TIMES and by_times and name in ("overlapping", "in_the_way"):
        return Rests.ESTIMATED
    return next((rests for rests, names in WEAKER[lack].items() if name in names.split()), Rests.KNOWN)


def _overlapped(commits: Sequence[PastCommit], at: int) -> Iterator[PastCommit]:
    """Yield the earlier commits that overlap this one (rule 1)."""
    later = commits[at]
    for earlier in reversed(commits[max(0, at - MAX_BACK) : at]):
        if later.base is not None and earlier.number is not None:
            if earlier.number <= later.base:
                return
        elif later.began is None or earlier.ended <= later.began:
            return
        if later.session is None or later.session != earlier.session:
            yield earlier


def _settled(history: TableHistory) -> Sequence[Leftover] | None:
    """The leftovers that no commit can still name (rule 4), and whose job the history may know."""
    if history.leftovers is None or not history.commits:
        return None
    longest = max((each.seconds or 0.0 for each in history.commits), default=0.0)
    first = history.commits[0].published
    last = history.now - max(GRACE_SECONDS, 3 * longest)
    return [each for each in history.leftovers if first < each.modified <= last]


def _lost_seconds(history: TableHistory, leftovers: Sequence[Leftover] | None) -> float | None:
    """Rule 3."""
    if not leftovers and (history.form == "iceberg" or (leftovers is None and history.form != "hudi")):
        return None
    by_partition: dict[str | None, list[PastCommit]] = defaultdict(list)
    timed = [each for each in history.commits if each.seconds is not None and not each.is_service]
    for commit in timed:
        for partition in commit.partitions:
            by_partition[partition].append(commit)
    seconds = 0.0
    for lost in history.lost:
        alike = [
            each for partition in lost.partitions for each in _alike(by_partition[partition], partition)
        ] or _alike(timed)
        if not alike:
            return None
        usual = fmean(each.seconds or 0.0 for each in alike)
        seconds += usual if lost.until is None else min(usual, max(0.0, lost.until - lost.began))
    sizes: Counter[str | None] = Counter()
    for leftover in leftovers or ():
        sizes[leftover.partition] += leftover.size
    for place, size in sizes.items():
        alike = _alike(by_partition[place], place) or timed
        if not (written := sum(each.size for each in alike)):
            return None
        seconds += size * sum(each.seconds or 0.0 for each in alike) / written
    return seconds


def _alike(commits: list[PastCommit], partition: str | None = None) -> list[PastCommit]:
    """Those that replaced files of the partition, or of any: a loser has, and an insert is shorter. None of them: all."""
    return [
        each for each in commits if (each.rewritten if partition is None else partition in each.rewritten)
    ] or commits


def _changes(
    commits: Sequence[PastCommit], found: Overlaps, losses: int, figures: Mapping[str, Figure]
) -> Iterator[str]:
    way, lost_seconds = figures["in_the_way"], figures["lost_seconds"]
    if not (found.in_the_way or losses):
        if way.value is None:
            yield "not known: no commit was seen in another one's way, but the table doesn't say enough to exclude it"
        elif lost_seconds.value is None:
            yield "not known: no two commits were in each other's way, but aborted tries can't be seen in this table"
        elif not found.overlapping:
            yield "nothing: no two commits overlapped and nothing was lost"
        else:
            yield (
                f"nothing: {len(found.overlapping)} commits overlapped, none of them in a partition that one of them rewrote; "
                "with admission auto they would run as they do now"
            )
        return
    many = len(found.in_the_way)
    often = many + losses >= OFTEN * len(commits)
    queues = ", so it would soon queue their writers" if often else ""
    lost = "the wasted compute"
    if lost_seconds.value is not None:
        lost = f"about {duration(lost_seconds.value)} of wasted compute"
    met = f"{way.hedge}{many} of {len(commits)} commits were in another one's way"
    if way.value is None:
        met = "how many commits were in another one's way is not known"
    waits = f", and writers would wait for at least {duration(found.seconds)} instead" if many else ""
    yield f"admission auto: {met}, {losses} writes or files were lost{queues}; {lost} would be saved{waits}"
    if not found.partitions:  # of a rolled back write without files
        return
    (worst, times), total = found.partitions.most_common(1)[0], found.partitions.total()
    if not any(found.partitions) and not any(any(each.partitions) for each in commits):
        yield (
            "partitioning: the table has none, so all rewrites are in each other's way; partition by a column in which the "
            "writers' batches differ, and only batches that share a value wait"
        )
    else:
        yield (
            f"partitioning: batches that share no partition wait for nothing; {len(found.partitions)} partitions were contended, "
            f"{worst} in {100 * times / total:.0f} % of the cases"
        )
    if found.services:
        yield (
            f"compaction: {found.services} of these overlaps are with a job that only rearranges files; with the priority of a "
            "table service it is the one that is aborted"
        )


def _unknown(history: TableHistory) -> Iterator[str]:
    form, timed = history.form, [each for each in history.commits if each.began is not None]
    if len(timed) < len(history.commits):
        yield f"when {len(history.commits) - len(timed)} of the commits began: the table doesn't say it"
    if form == "hudi":
        yield "how long a rolled back write ran: the table keeps its start and its rollback only"
        return
    if form == "iceberg":
        yield "aborted tries: Iceberg keeps no record of them, and an aborted job deletes its files; a killed one doesn't"
    else:
        yield "tries that wrote no file, or whose files were removed since (VACUUM, an abort): the estimate is a lower bound"
    if form == "delta":
        yield "what a job computed before its statement began: `executionTimeMs` is the statement's alone"
    else:
        yield "what a commit had read when it began: overlaps are found by the time of its first data file, and some are missed"


def duration(seconds: float) -> str:
    """Seconds as text."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
