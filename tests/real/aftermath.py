"""What a fleet has left behind, and what must be true of it: the promises, judged without asking an agent.

The checks use the log, the evidence of the writers with times on CLOCK_MONOTONIC, and the tables of the storm's own writers. The
log may contain records of strangers (`strangers.py`); what counts of them is decided by the rules of docs/protocol.md.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio.abc
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.events import WRITER_EVENT, CommitIntent, CommitRequested, MarkerCreated, decode
from tests.kafka_fixture import read_to_end
from tests.real import evidence, promises, replays, storm_tables
from tests.real.fleet import PARTITIONS, Fleet, Sample
from tests.real.storm_writers import MAX_LOSSES, TABLES

REPLAYS = 20
"""Checkpoints per partition from which the log is replayed."""

Line = dict[str, Any]


@dataclass(slots=True)
class Aftermath:
    """What all processes have left behind."""

    seed: int
    lines: list[Line]
    samples: list[Sample]
    logs: dict[int, replays.Log]
    tables: dict[str, list[storm_tables.Line]]

    def lines_of(self, what: str) -> list[Line]:
        """The writers' evidence of one kind."""
        return [line for line in self.lines if line["what"] == what]

    def figures(self) -> tuple[Counter[str], Counter[str]]:
        """How many decisions there are of each kind, and how often a batch was acknowledged in each way."""
        decided = map(fields, self.records("decisions"))
        return (
            Counter(each["type"] + ":" + each.get("reason", "") for each in decided),
            Counter(line["how"] for line in self.lines_of("acknowledged")),
        )

    def records(self, of: str) -> Iterable[ConsumerRecord]:
        """The records of one topic in all partitions."""
        for log in self.logs.values():
            yield from getattr(log, of)


async def aftermath(storm: Fleet, tasks: anyio.abc.TaskGroup) -> Aftermath:
    """Read everything that is left. The replays run their tasks in this group."""
    scene = storm.scene
    topics = scene.settings().topics
    spans = [
        TopicPartition(topic, number)
        for topic in (topics.writers, topics.decisions, topics.ledger)
        for number in range(PARTITIONS)
    ]
    found = await read_to_end(scene.settings(), dict.fromkeys(spans))
    logs = {
        number: replays.Log(
            scene,
            tasks,
            number,
            *(
                found[TopicPartition(topic, number)]
                for topic in (topics.writers, topics.decisions, topics.ledger)
            ),
        )
        for number in range(PARTITIONS)
    }
    tables = [f"{storm.tables}/t-{number}" for number in range(TABLES)]
    return Aftermath(
        storm.seed,
        storm.evidence(),
        storm.samples,
        logs,
        {table: storm_tables.lines(table) for table in tables},
    )


def check_every_promise(left: Aftermath, *, answered: Callable[[str], bool] = promises.everyone) -> None:
    """Check every promise that the log, the writers' evidence and the tables can prove. `answered`: as for `promises.check`."""
    check_one_grant_at_any_moment(left)
    check_that_every_publish_has_a_grant(left)
    found = promises.transactions(left.records("writers"), left.records("decisions"))
    promises.check(found, answered=answered)
    check_that_batches_are_committed_once(left)
    check_that_no_writer_keeps_losing(left)
    check_that_checkpoints_never_move_backwards(left)
    check_that_replays_agree(left)


def check_one_grant_at_any_moment(left: Aftermath) -> None:
    """G1: no two publishes of a table at once, by the clock. Each one has a larger token than all before it."""
    of_table = defaultdict(list)
    for line in left.lines:
        of_table[line["table"]].append({"token": None, **line})
    for lines in of_table.values():
        assert evidence.overlapping(evidence.publishes(lines)) == []
        assert evidence.tokens_rise(lines)


def check_that_every_publish_has_a_grant(left: Aftermath) -> None:
    """G4: every publish and every commit in a table has its grant in the log, at the offset of its token."""
    granted = {
        (record.partition, record.offset): (decision["table"], decision["transaction"], decision["grant"])
        for record in left.records("decisions")
        if (decision := fields(record))["type"] == "commit-granted"
    }
    tokens = {grant: where for where, grant in granted.items()}
    for line in left.lines_of("publishing"):
        where = tokens[line["table"], line["transaction"], line["grant"]]
        assert where[1] == line["token"]
    begun = {line["transaction"] for line in left.lines_of("publishing")}
    for table, commits in left.tables.items():
        for commit in commits:
            assert (table, commit.transaction, commit.grant) in tokens
            assert commit.transaction in begun


def check_that_batches_are_committed_once(left: Aftermath) -> None:
    """G6: each batch of a writer is committed once, in order and without a gap. No acknowledged batch is missing."""
    committed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for table, commits in left.tables.items():
        for commit in commits:
            committed[table, commit.writer].append(commit.batch)
    acknowledged: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in left.lines_of("acknowledged"):
        acknowledged[line["table"], line["writer"]].append(line["batch"])
    assert {each: list(range(len(batches))) for each, batches in committed.items()} == committed
    assert acknowledged == committed


def check_that_no_writer_keeps_losing(left: Aftermath) -> None:
    """G5: a writer that has lost `max_losses` conflicts in a row, and then touches only its scope, wins.

    It may lose to a protected one with an earlier intent that touches more than its scope: the queue can't keep those apart.
    A writer that is killed before it receives an abort does not know of that loss, and may lose one conflict more. Strangers are
    not judged: they don't wait in the queue.
    """
    named: dict[str, set[str]] = {}
    touched: dict[str, set[str]] = defaultdict(set)
    for record in left.records("writers"):
        event = decode(WRITER_EVENT, record.value, key=record.key or b"")
        if isinstance(event, CommitIntent):
            named.setdefault(event.transaction, {each.file_group for each in event.scope})
        elif isinstance(event, MarkerCreated | CommitRequested):
            touched[event.transaction] |= {each.file_group for each in event.markers}
    lost = [
        each
        for each in map(fields, left.records("decisions"))
        if each["type"] == "abort" and each["losses"] is not None and each["writer"].startswith("writer-")
    ]
    print(f"longest row of lost conflicts: {max(each['losses'] for each in lost)}")
    again = [each for each in lost if each["losses"] > MAX_LOSSES]
    beyond = {each for each, groups in touched.items() if not groups <= named.get(each, set())}
    within = [each for each in again if each["transaction"] not in beyond]
    order = {transaction: number for number, transaction in enumerate(named)}
    unexplained = [
        each
        for each in within
        if not any(
            other in beyond and order.get(other, len(order)) < order[each["transaction"]]
            for other in (entry["other_transaction"] for entry in each["conflicts"])
        )
    ]
    assert unexplained == [], [(each, sorted(touched[each["transaction"]])) for each in unexplained]
    received = {line["transaction"] for line in left.lines_of("aborted")}
    more = [each for each in lost if each["transaction"] not in received or each in within]
    unknown = Counter((each["writer"], each["table"]) for each in more)
    for each in lost:
        assert each["losses"] <= MAX_LOSSES + unknown[each["writer"], each["table"]], each


def check_that_checkpoints_never_move_backwards(left: Aftermath) -> None:
    """G7: neither the offset nor the position in `decisions`, whichever agent commits it."""
    last: dict[int, tuple[int, int]] = {}
    for sample in left.samples:
        now = (sample.offset, json.loads(sample.metadata)["decisions"])
        before = last.setdefault(sample.partition, now)
        assert now[0] >= before[0], (sample.partition, before, now)
        assert now[1] >= before[1], (sample.partition, before, now)
        last[sample.partition] = now
    assert len(last) == PARTITIONS
    assert len(set(left.samples)) > 2 * PARTITIONS


def check_that_replays_agree(left: Aftermath) -> None:
    """G7: at every offset, a replay from a checkpoint has the same state as a replay from the beginning.

    At the end no transaction is open, and the ledger agrees with the tables.
    """
    compared = busy = 0
    for number, log in left.logs.items():
        mine = sorted({each for each in left.samples if each.partition == number}, key=_age)
        end = log.writers[-1].offset + 1
        last = mine[-1]
        chance = random.Random(left.seed)
        cuts = [(each, each.writers_end) for each in chance.sample(mine[:-1], min(REPLAYS, len(mine) - 1))]
        whole = dict(log.from_the_beginning(sorted({cut for _, cut in cuts} | {end})))
        for sample, cut in (*cuts, (last, end)):
            rebuilt = log.from_committed(sample.offset, sample.metadata, sample.ledger_end, cut)
            assert rebuilt == whole[cut], _difference(rebuilt, whole[cut], f"{number} {sample} {cut}")
            compared += 1
            busy += any(table["transactions"] for table in rebuilt.values())
        ours = {uri: table for uri, table in whole[end].items() if uri in left.tables}
        assert not any(table["transactions"] for table in ours.values())
        for uri, table in ours.items():
            there = {line.writer: (line.batch, line.transaction) for line in left.tables[uri]}
            assert {
                writer: (each.batch_id, each.transaction) for writer, each in table["ledger"].items()
            } == there
    print(f"{compared} replays compared, {busy} of them with transactions open")
    assert busy > PARTITIONS


def _difference(rebuilt: Line, whole: Line, where: str) -> str:
    """The tables whose states differ, and in what."""
    tables = [each for each in {**rebuilt, **whole} if rebuilt.get(each) != whole.get(each)]
    parts = [
        f"{table} {part}: from the checkpoint {one}, from the beginning {two}"
        for table in tables
        for part in ("transactions", "ledger", "losses")
        if (one := rebuilt.get(table, {}).get(part)) != (two := whole.get(table, {}).get(part))
    ]
    return "\n".join([where, *parts])


def _age(sample: Sample) -> tuple[int, int]:
    return sample.writers_end, sample.ledger_end


def fields(record: ConsumerRecord) -> Line:
    found: Line = json.loads(record.value)
    return found
