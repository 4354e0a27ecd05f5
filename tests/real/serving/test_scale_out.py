"""Three agents, twelve partitions, two hundred tables, fifty writers, and faults on every side: every promise, from outside.

Concluded from the log, from what the writers noted on CLOCK_MONOTONIC, and from the tables themselves; nothing asks an agent.
`LAKEWARDEN_STORM_SECONDS` is how long the faults go on at least, two minutes where it is not said; `LAKEWARDEN_CHAOS_SEED` draws
the lots once more of a run that said it.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.kafka import read_to_end
from tests.kafka_fixture import KafkaServer
from tests.own_task import in_own_task
from tests.real import evidence, promises, replays, storm_tables
from tests.real.fleet import PARTITIONS, Fleet, Sample, fleet
from tests.real.storm_writers import MAX_LOSSES, TABLES, WRITERS

SECONDS_VARIABLE = "LAKEWARDEN_STORM_SECONDS"
SECONDS = float(os.environ.get(SECONDS_VARIABLE, "") or 120)
SEED_VARIABLE = "LAKEWARDEN_CHAOS_SEED"
UNHEARD_LOSSES = 2
"""A writer that was killed does not know of each conflict that it lost, and may exceed what it named once more."""
REPLAYS = 20
"""Committed points of each partition from which the log is folded again."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(600 + 2 * SECONDS)]

Line = dict[str, Any]


@dataclass(slots=True)
class Aftermath:
    """All that is left when everybody has ended."""

    seed: int
    lines: list[Line]
    samples: list[Sample]
    logs: dict[int, replays.Log]
    tables: dict[str, list[storm_tables.Line]]

    def noted(self, what: str) -> list[Line]:
        """The writers' lines of one kind."""
        return [line for line in self.lines if line["what"] == what]

    def records(self, of: str) -> Iterable[ConsumerRecord]:
        """Of all partitions."""
        for log in self.logs.values():
            yield from getattr(log, of)


@pytest.fixture
def seed() -> int:
    """Another one each time; that of a failed run is in its output."""
    chosen = int(os.environ.get(SEED_VARIABLE, "") or random.SystemRandom().randrange(1_000_000))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


@pytest_asyncio.fixture
async def storm(kafka: KafkaServer, topic_prefix: str, tmp_path: Path, seed: int) -> AsyncIterator[Fleet]:
    async with in_own_task(fleet(kafka.bootstrap_servers, topic_prefix, tmp_path, seed)) as made:
        yield made


async def test_agents_and_writers_come_and_go_and_every_promise_is_kept(storm: Fleet) -> None:
    await _run_faults(storm)
    async with anyio.create_task_group() as tasks:
        left = await _aftermath(storm, tasks)
        _check_that_it_was_a_storm(storm, left)
        _check_one_grant_at_any_moment(left)
        _check_that_who_publishes_was_granted(left)
        promises.check(promises.transactions(left.records("writers"), left.records("decisions")))
        _check_that_batches_are_there_once(left)
        _check_that_nobody_keeps_losing(left)
        _check_that_offsets_never_go_back(left)
        _check_that_replays_agree(left)


async def _run_faults(storm: Fleet) -> None:
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        await storm.start()
        tasks.start_soon(storm.sample)
        await storm.run_faults(SECONDS)
        print(f"storm over after {time.monotonic() - began:.0f} s: {dict(storm.faults)}")
        await storm.finish()
        tasks.cancel_scope.cancel()
    await storm.sample_once()
    print(f"settled after {time.monotonic() - began:.0f} s")


async def _aftermath(storm: Fleet, tasks: anyio.abc.TaskGroup) -> Aftermath:
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


def _check_that_it_was_a_storm(storm: Fleet, left: Aftermath) -> None:
    """Faults of every kind, and of everything that they may do to a writer something happened."""
    decided = Counter(
        each["type"] + ":" + each.get("reason", "") for each in map(_fields, left.records("decisions"))
    )
    how = Counter(line["how"] for line in left.noted("acknowledged"))
    retries = sum(line["admission"] == "queued" for line in left.noted("try"))
    print(f"decided: {dict(decided)}\nacknowledged: {dict(how)}, retries: {retries}")
    for deed in ("agent killed", "agent stopped in order", "agent paused", "writers killed"):
        assert storm.faults[deed], deed
    assert decided["abort:conflict"]
    assert decided["partition-taken:"] > PARTITIONS
    assert retries
    assert all(how[each] for each in ("published", "already-committed", "found"))
    assert [table for table, lines in left.tables.items() if not lines] == []
    assert {line["writer"] for line in left.noted("acknowledged")} == {
        f"writer-{each}" for each in range(WRITERS)
    }


def _check_one_grant_at_any_moment(left: Aftermath) -> None:
    """G1, by true time; and each publish bears a larger token than all before it."""
    of_table = defaultdict(list)
    for line in left.lines:
        of_table[line["table"]].append({"token": None, **line})
    for lines in of_table.values():
        assert evidence.overlapping(evidence.publishes(lines)) == []
        assert evidence.tokens_rise(lines)


def _check_that_who_publishes_was_granted(left: Aftermath) -> None:
    """G4: every publish, and every line of every table, has its grant in the log, where its token says."""
    granted = {
        (record.partition, record.offset): (told["transaction"], told["grant"])
        for record in left.records("decisions")
        if (told := _fields(record))["type"] == "commit-granted"
    }
    tokens = {grant: where for where, grant in granted.items()}
    for line in left.noted("publishing"):
        where = tokens[line["transaction"], line["grant"]]
        assert where[1] == line["token"]
    begun = {line["transaction"] for line in left.noted("publishing")}
    for table in left.tables.values():
        for commit in table:
            assert (commit.transaction, commit.grant) in tokens
            assert commit.transaction in begun


def _check_that_batches_are_there_once(left: Aftermath) -> None:
    """G6: each batch of a writer once, in order and without a gap; none that was acknowledged is missing."""
    there: dict[tuple[str, str], list[int]] = defaultdict(list)
    for table, lines in left.tables.items():
        for line in lines:
            there[table, line.writer].append(line.batch)
    acknowledged: dict[tuple[str, str], list[int]] = defaultdict(list)
    for note in left.noted("acknowledged"):
        acknowledged[note["table"], note["writer"]].append(note["batch"])
    assert {each: list(range(len(batches))) for each, batches in there.items()} == there
    assert acknowledged == there


def _check_that_nobody_keeps_losing(left: Aftermath) -> None:
    """G5: who lost `max_losses` conflicts in a row, and then touches only what it named, wins."""
    named: dict[str, set[str]] = {}
    touched: dict[str, set[str]] = defaultdict(set)
    for event in map(_fields, left.records("writers")):
        if event["type"] == "commit-intent":
            named[event["transaction"]] = {each["file_group"] for each in event["scope"]}
        touched[event["transaction"]] |= {each["file_group"] for each in event.get("markers", ())}
    lost = [
        each
        for each in map(_fields, left.records("decisions"))
        if each["type"] == "abort" and each["losses"] is not None
    ]
    print(f"longest row of lost conflicts: {max(each['losses'] for each in lost)}")
    protected = [each["transaction"] for each in lost if each["losses"] > MAX_LOSSES]
    assert [each for each in protected if touched[each] <= named[each]] == []
    assert max(each["losses"] for each in lost) <= MAX_LOSSES + UNHEARD_LOSSES


def _check_that_offsets_never_go_back(left: Aftermath) -> None:
    last: dict[int, tuple[int, int]] = {}
    for sample in left.samples:
        now = (sample.offset, json.loads(sample.metadata)["decisions"])
        before = last.setdefault(sample.partition, now)
        assert now[0] >= before[0], (sample.partition, before, now)
        assert now[1] >= before[1], (sample.partition, before, now)
        last[sample.partition] = now
    assert len(last) == PARTITIONS
    assert len(set(left.samples)) > 2 * PARTITIONS


def _check_that_replays_agree(left: Aftermath) -> None:
    """G7: whoever begins at a committed point knows, at every later point, what one knows who has read everything.

    At the end nothing is open, and the ledgers say what the tables do.
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
            assert rebuilt == whole[cut], (number, sample, cut)
            compared += 1
            busy += any(table["transactions"] for table in rebuilt.values())
        assert not any(table["transactions"] for table in whole[end].values())
        for uri, table in whole[end].items():
            there = {line.writer: (line.batch, line.transaction) for line in left.tables[uri]}
            assert {
                writer: (each.batch_id, each.transaction) for writer, each in table["ledger"].items()
            } == there
    print(f"{compared} replays compared, {busy} of them with transactions open")
    assert busy > PARTITIONS


def _age(sample: Sample) -> tuple[int, int]:
    return sample.writers_end, sample.ledger_end


def _fields(record: ConsumerRecord) -> Line:
    found: Line = json.loads(record.value)
    return found
