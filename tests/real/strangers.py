"""Clients with the right to write to `writers` that send whatever they like, aimed at transactions that are running.

A stranger sees every id, writer and grant in the topics. It doesn't take another writer's name together with a transaction of
that writer: records with both are the writer's own for every reader (docs/protocol.md). Everything else is tried: see `KINDS`.

On the tables of others a stranger may do what any writer may: open transactions of its own, win conflicts and obtain grants. It
then falls silent. So these tables are delayed, and their writers go on once the stranger's transaction was lost or has lapsed.
"""

import asyncio
import json
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition

from lakewarden.events import WRITER_EVENT, CommitIntent, Undecodable, decode
from lakewarden.events.access import partition_of, stop_client
from tests.real.writers import World
from tests.waiting import until

NAME: Final = "stranger"
BURSTS: Final = 4.0
"""Per second, on average."""
LARGEST_BURST: Final = 10
"""Actions, most of which send one record."""
RECENT: Final = 300
"""Latest records of others, whose names are used."""
SILENT_SECONDS: Final = 2.0
"""`heartbeat_seconds` of a transaction on another's table: after three of them the agent aborts it."""
PATIENCE_SECONDS: Final = 300.0
"""A time limit that ends a test which hangs."""
MARKER: Final = {"partition": "p", "file_group": "0", "operation": "merge"}
EVERYTHING: Final = {"partition": "p", "file_group": "*", "operation": "delete"}
INTEGERS: Final = (0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40, 10**4000)
FILLERS: Final = ("n", "é", "\U0001f40b", "\x01", '"', "\u2028", "\x7f")
SIZES: Final = (1, 100, 505, 511, 512, 513)

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """One record."""

    value: bytes | None
    key: bytes | None


class Strangers:
    """Sends records of every kind in random order until cancelled."""

    def __init__(self, scene: World, folder: str, tables: Sequence[str], partitions: int, seed: int) -> None:
        """`folder`: where the strangers' own tables are; `tables`: those of others."""
        self.sent: Counter[str] = Counter()
        """Actions by kind."""
        self.open: set[str] = set()
        """The strangers' transactions on the tables of others that have no abort yet."""
        self._scene = scene
        self._topic = scene.settings().topics.writers
        self._chance = Random(seed)
        self._tables = tables
        self._partitions = list(range(partitions))
        self._own = self._table_for_each_partition(folder)
        self._seen: deque[tuple[bytes, Fields]] = deque(maxlen=RECENT)
        self._granted: deque[Fields] = deque(maxlen=RECENT)
        """Grants of others."""
        self._elsewhere: set[str] = set()
        """Transaction ids of others that the strangers have used on their own tables."""
        self._obtained: deque[Fields] = deque(maxlen=RECENT)
        """Grants of the strangers on their own tables."""

    def _table_for_each_partition(self, folder: str) -> list[str]:
        found: dict[int, str] = {}
        number = 0
        while len(found) < len(self._partitions):
            table = f"{folder}/{NAME}-{number}"
            found.setdefault(self._partition(table), table)
            number += 1
        return [found[each] for each in self._partitions]

    def _partition(self, table: str) -> int:
        return partition_of(table, len(self._partitions))

    # -- running -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read what others write and what the agents decide, while the block runs."""
        decisions = self._scene.settings().topics.decisions
        consumer = AIOKafkaConsumer(bootstrap_servers=self._scene.bootstrap_servers, enable_auto_commit=False)
        await consumer.start()
        consumer.assign([TopicPartition(t, n) for t in (self._topic, decisions) for n in self._partitions])
        await consumer.seek_to_end()
        reading = asyncio.create_task(self._read(consumer))
        try:
            yield
        finally:
            reading.cancel()
            await stop_client(consumer)

    async def run(self) -> None:
        """Send until cancelled."""
        kinds, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
        while True:
            await anyio.sleep(self._chance.expovariate(BURSTS))
            for kind in self._chance.choices(kinds, weights, k=self._chance.randint(1, LARGEST_BURST)):
                records = list(KINDS[kind][1](self))
                for each in records:
                    await self._scene.producer.send(self._topic, each.value, each.key)
                self.sent[kind] += bool(records)

    async def settle(self) -> None:
        """Wait until all of the strangers' transactions on the tables of others have ended."""
        await until(lambda: not self.open, seconds=PATIENCE_SECONDS)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            for where, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    if where.topic == self._topic:
                        self._see_event(record.value, record.key)
                    else:
                        self._see_decision(json.loads(record.value))

    def _see_event(self, value: bytes | None, key: bytes | None) -> None:
        event = decode(WRITER_EVENT, value, key=key or b"")
        if value is not None and not isinstance(event, Undecodable) and NAME not in event.writer:
            self._seen.append((value, json.loads(value)))

    def _see_decision(self, decision: Fields) -> None:
        if decision["type"] == "abort":
            self.open.discard(decision["transaction"])
        elif decision["type"] == "commit-granted":
            if NAME not in decision["writer"]:
                self._granted.append(decision)
            elif decision["table"] in self._own:
                self._obtained.append(decision)

    # -- building ----------------------------------------------------------------------------------------------------

    def _record(self, kind: str, table: str, **fields: Any) -> Sent:
        event = {
            "type": kind,
            "protocol": 1,
            "event_id": uuid.uuid4().hex,
            "table": table,
            "transaction": uuid.uuid4().hex,
            "writer": f"{NAME}-{self._chance.randrange(10)}",
            "at": "2026-01-01T00:00:00Z",
            **fields,
        }
        return Sent(json.dumps(event).encode("utf-8", "replace"), table.encode())

    def _other(self) -> Fields | None:
        """A recent event of another writer."""
        return self._chance.choice(self._seen)[1] if self._seen else None

    def _grant(self) -> Fields | None:
        """A recent grant of another writer."""
        return self._chance.choice(self._granted) if self._granted else None

    def _table(self) -> str:
        return self._chance.choice(self._tables)

    def _text(self) -> str:
        """A text at or around the limit of names."""
        filler, size = self._chance.choice(FILLERS), self._chance.choice(SIZES)
        return NAME + uuid.uuid4().hex + filler * ((size - len(NAME) - 32) // len(filler.encode()))

    def _open_on(self, table: str, *, request: bool, **fields: Any) -> Iterator[Sent]:
        """Open a transaction on a table of others, and fall silent."""
        transaction = uuid.uuid4().hex
        self.open.add(transaction)
        fields = {"heartbeat_seconds": SILENT_SECONDS, **fields}
        yield self._record("commit-intent", table, transaction=transaction, writer=f"{NAME}-0", **fields)
        if request:
            yield self._record(
                "commit-requested", table, transaction=transaction, writer=f"{NAME}-0", seq=2**63 - 1
            )

    # -- records that are no events ----------------------------------------------------------------------------------

    def random_bytes(self) -> Iterator[Sent]:
        key = self._chance.choice([None, b"", self._table().encode(), b"\xff\xfe", b"k" * 5000])
        yield Sent(self._chance.randbytes(self._chance.choice([0, 1, 20, 3_000])), key)

    def empty(self) -> Iterator[Sent]:
        yield Sent(None, self._table().encode())

    def mutated(self) -> Iterator[Sent]:
        """A record of another writer with some bytes changed, and without its name."""
        if not self._seen:
            return
        value = bytearray(self._chance.choice(self._seen)[0].replace(b'"writer-', f'"{NAME}-'.encode()))
        for _ in range(self._chance.randrange(1, 6)):
            at = self._chance.randrange(len(value))
            match self._chance.randrange(3):
                case 0:
                    value[at] = self._chance.randrange(256)
                case 1:
                    del value[at : at + self._chance.randrange(1, 30)]
                case _:
                    value[at:at] = value[: self._chance.randrange(1, 60)]
            value = value or bytearray(b"{")
        key = self._table().encode()
        event = decode(WRITER_EVENT, bytes(value), key=key)
        if not isinstance(event, CommitIntent):  # `open` doesn't know it
            yield Sent(bytes(value), key)

    def odd_json(self) -> Iterator[Sent]:
        table = self._table()
        odd = self._chance.choice(
            [
                b"null",
                b"[]",
                b"NaN",
                b"1e999",
                b'"\\ud800"',
                b"[" * 100_000,
                b'{"a":' * 50_000,
                b"9" * 5_000,
                b'{"type":"writer-heartbeat","type":"commit-intent"}',
                b'{"type":["commit-intent"],"transaction":{},"writer":[],"table":7}',
                b"\xef\xbb\xbf{}",
                json.dumps({"type": "commit-intent", "transaction": "\ud800", "table": table}).encode(),
            ]
        )
        yield Sent(odd, table.encode())

    def large(self) -> Iterator[Sent]:
        """Close to the limit of a record."""
        markers = [{**MARKER, "file_group": f"{n:04}" + "\x02" * 150} for n in range(900)]
        fields = {"markers": markers} if self._chance.random() < 0.5 else {"markers": [], "x": "x" * 990_000}
        yield self._record("marker-created", self._chance.choice(self._own), **fields)

    def unknown(self) -> Iterator[Sent]:
        """Unknown types and versions; missing, wrong and strange fields."""
        wrong: Fields = self._chance.choice(
            [
                {"type": "commit-cancelled"},
                {"type": "commit-granted", "grant": "g", "lease_seconds": 3600, "seq": 1, "cause_offset": 0},
                {"type": "abort", "reason": "conflict", "retriable": False, "cause_offset": 0},
                {"type": "partition-taken", "agent": "a", "term": "t"},
                {"type": None},
                {"protocol": 2},
                {"protocol": "1"},
                {"at": "yesterday"},
                {"writer": None},
                {"transaction": ""},
                {"event_id": 7},
                {"heartbeat_seconds": 0},
                {"heartbeat_seconds": float("nan")},
                {"scope": "all"},
                {"admission": "first"},
            ]
        )
        yield self._record("commit-intent", self._table(), **wrong)

    def wrong_place(self) -> Iterator[Sent]:
        """A key that isn't the table, tables that aren't canonical or not allowed."""
        table = self._table()
        right = self._record("commit-intent", table)
        other = self._chance.choice(
            [
                f"{table}/",
                table.replace("/tables/", "//tables/"),
                f"{table}/../../x",
                f"{table}%2f..%2fx",
                "file:///etc",
                "s3://elsewhere/t",
                "t",
                "",
                "\n",
            ]
        )
        match self._chance.randrange(3):
            case 0:
                yield Sent(right.value, other.encode())
            case 1:
                yield Sent(self._record("commit-intent", other).value, table.encode())
            case _:
                yield self._record("commit-intent", other)

    # -- events at the limits, on the strangers' own tables ----------------------------------------------------------

    def limits(self) -> Iterator[Sent]:
        """A transaction whose every field is at or beyond a limit."""
        chance, table = self._chance, self._chance.choice(self._own)
        names = {"transaction": self._text(), "writer": self._text()}
        markers = [{**MARKER, "file_group": f"f{n}"} for n in range(chance.choice([0, 1, 10, 1_000]))]
        long = [{"partition": "\x01" * 1024, "file_group": "\U0001f40b" * 1024, "operation": "append"}]
        yield self._record(
            "commit-intent",
            table,
            **names,
            event_id=self._text(),
            batch_id=chance.choice((None, *INTEGERS)),
            priority=chance.choice((0, 0, 0, *INTEGERS)),
            admission=chance.choice(["optimistic", "queued"]),
            conflict_rule=chance.choice(["file-group", "deleted-file"]),
            heartbeat_seconds=chance.choice([5e-324, 1.0, 5.0]),
            scope=chance.choice([[], markers, long, [EVERYTHING]]),
        )
        yield self._record("marker-created", table, **names, markers=chance.choice([markers, long]))
        yield self._record("writer-heartbeat", table, **names, seq=chance.choice(INTEGERS))
        if chance.random() < 0.8:
            yield self._record("commit-requested", table, **names, seq=chance.choice(INTEGERS))
        else:
            yield self._record("transaction-abandoned", table, **names, reason="\x01" * 1000)

    def own_commit(self) -> Iterator[Sent]:
        """Commit on a table of the strangers: the ledger and `already-committed` repeat what a completion names."""
        if not self._obtained or self._chance.random() < 0.5:
            names = {"transaction": uuid.uuid4().hex, "writer": f"{NAME}-{uuid.uuid4().hex}"}
            table = self._chance.choice(self._own)
            yield self._record("commit-intent", table, **names, batch_id=self._chance.choice((None, 0, 1)))
            yield self._record("commit-requested", table, **names, seq=1)
            return
        granted = self._chance.choice(self._obtained)
        version = self._chance.choice([None, "", "\x01" * 1024, "\U0001f40b" * 1024, "v" * 1025])
        yield self._record(
            "commit-completed",
            granted["table"],
            transaction=granted["transaction"],
            writer=granted["writer"],
            grant=granted["grant"],
            version=version,
            batch_id=self._chance.choice(INTEGERS),
        )

    # -- forged events -----------------------------------------------------------------------------------------------

    def forged_event(self) -> Iterator[Sent]:
        """An event on another writer's transaction, by a stranger."""
        if (other := self._other()) is None:
            return
        granted = self._grant() or {"grant": "0:0"}
        if self._chance.random() < 0.5 and "table" in granted:
            other = granted
        fields: Fields = self._chance.choice(
            [
                {"type": "marker-created", "markers": [EVERYTHING]},
                {"type": "writer-heartbeat", "seq": 2**63 - 1},
                {"type": "commit-requested", "seq": 2**63 - 1, "markers": [EVERYTHING]},
                {"type": "transaction-abandoned", "reason": "by a stranger"},
                {"type": "commit-completed", "grant": granted["grant"], "version": "9", "batch_id": 10**12},
                {"type": "marker-created", "markers": [{**MARKER, "file_group": "g" * 1025}]},
            ]
        )
        yield self._record("", other["table"], transaction=other["transaction"], **fields)

    def forged_grant(self) -> Iterator[Sent]:
        """A completion in a writer's name, with a grant that its transaction doesn't have."""
        if (other := self._other()) is None:
            return
        granted = self._grant() or {"grant": "0:0", "transaction": ""}
        forged = self._chance.choice(["0:0", "g" * 128, granted["grant"] + "0"])
        if granted["transaction"] != other["transaction"] and self._chance.random() < 0.3:
            forged = granted["grant"]
        yield self._record(
            "commit-completed",
            other["table"],
            transaction=other["transaction"],
            writer=other["writer"],
            grant=forged,
            batch_id=10**12,
        )

    def forged_transaction(self) -> Iterator[Sent]:
        """An event in a writer's name, of a transaction that doesn't exist."""
        if (other := self._other()) is None:
            return
        granted = self._grant() or {"grant": "0:0"}
        fields: Fields = self._chance.choice(
            [
                {"type": "commit-completed", "grant": granted["grant"], "batch_id": 10**12},
                {"type": "transaction-abandoned", "reason": "by a stranger"},
                {"type": "writer-heartbeat", "seq": 2**63 - 1},
                {"type": "marker-created", "markers": [EVERYTHING]},
                {"type": "commit-requested", "seq": 1},
            ]
        )
        yield self._record("", other["table"], writer=other["writer"], **fields)

    def same_id_elsewhere(self) -> Iterator[Sent]:
        """Another writer's transaction id, opened and granted on a table of the strangers in the same Kafka partition.

        Once for each id: a replay may read a repeated intent without the first one.
        """
        other = self._other()
        if other is None or other["transaction"] in self._elsewhere:
            return
        self._elsewhere.add(other["transaction"])
        table = self._own[self._partition(other["table"])]
        names = {"transaction": other["transaction"], "writer": other["writer"]}
        yield self._record("commit-intent", table, **names, heartbeat_seconds=SILENT_SECONDS)
        yield self._record("commit-requested", table, **names, seq=1)

    def refused_elsewhere(self) -> Iterator[Sent]:
        """A record with a writer's names and a wrong key, which another partition's owner refuses with an abort."""
        if (other := self._other()) is None:
            return
        names = {"transaction": other["transaction"], "writer": other["writer"]}
        elsewhere = self._own[(self._partition(other["table"]) + 1) % len(self._own)]
        record = self._record("writer-heartbeat", other["table"], **names, seq=1)
        yield Sent(record.value, elsewhere.encode())

    def forged_lock(self) -> Iterator[Sent]:
        """A lock at a place where no lock of this table may be."""
        table = self._table()
        root = str(self._scene.locks)
        lock = self._chance.choice(
            [
                "file:///etc/passwd",
                f"file://{self._scene.root}/elsewhere/lock.json",
                f"file://{root}/../elsewhere.json",
                "s3://elsewhere/lock.json",
                "s3://[/x",
                "\x01" * 2048,
                "\x01" * 2049,
                "",
            ]
        )
        yield from self._open_on(table, request=False, lock=lock)

    def duplicates(self) -> Iterator[Sent]:
        """A record of another writer, delivered again: any but an intent, which a replay may read without the first one."""
        repeatable = [each for each in self._seen if each[1]["type"] != "commit-intent"]
        if repeatable:
            value, fields = self._chance.choice(repeatable)
            yield Sent(value, fields["table"].encode())

    # -- what any writer may do --------------------------------------------------------------------------------------

    def bad_priority(self) -> Iterator[Sent]:
        priority = self._chance.choice(INTEGERS)
        yield from self._open_on(self._table(), request=False, priority=priority, scope=[MARKER])

    def silent(self) -> Iterator[Sent]:
        """Touch everything on a table of others, and fall silent."""
        admission = self._chance.choice(["optimistic", "queued"])
        yield from self._open_on(self._table(), request=False, admission=admission, scope=[EVERYTHING])

    def silent_grant(self) -> Iterator[Sent]:
        """Obtain a grant on a table of others, and fall silent."""
        yield from self._open_on(self._table(), request=True, scope=[MARKER])


KINDS: Final[dict[str, tuple[float, Callable[[Strangers], Iterator[Sent]]]]] = {
    "random bytes": (1.0, Strangers.random_bytes),
    "no value": (0.3, Strangers.empty),
    "changed bytes": (2.0, Strangers.mutated),
    "odd JSON": (1.0, Strangers.odd_json),
    "large records": (0.2, Strangers.large),
    "unknown types and fields": (1.0, Strangers.unknown),
    "wrong keys and tables": (1.0, Strangers.wrong_place),
    "events at every limit": (1.0, Strangers.limits),
    "own commits": (0.5, Strangers.own_commit),
    "forged events": (3.0, Strangers.forged_event),
    "forged grants": (1.0, Strangers.forged_grant),
    "forged transactions": (1.0, Strangers.forged_transaction),
    "ids used elsewhere": (1.0, Strangers.same_id_elsewhere),
    "names refused elsewhere": (1.0, Strangers.refused_elsewhere),
    "forged locks": (0.5, Strangers.forged_lock),
    "repeated records": (1.0, Strangers.duplicates),
    "priorities": (0.5, Strangers.bad_priority),
    "silent writers": (0.3, Strangers.silent),
    "silent grants": (0.3, Strangers.silent_grant),
}
"""By name: the weight, and what is sent."""
