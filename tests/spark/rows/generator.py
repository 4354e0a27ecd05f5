"""Generates situations: a table, and batches whose columns, types, nesting, names and values are near the table's, or not.

A batch is derived from the table's columns. Most of its columns differ in ways that every format accepts (order, narrower
types), so that rows are compared; one in a few has a column that is refused. Keys and partitions have few values, so that
batches meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from tests.spark.rows.situations import MAPPED
from tests.spark.rows.tables import Situation, quoted


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Array:
    element: Kind


@dataclass(frozen=True, slots=True)
class Map:
    key: str
    value: Kind


Kind: TypeAlias = "str | Struct | Array | Map"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    nullable: bool = True


INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}

NEAR: dict[str, tuple[str, ...]] = {
    "tinyint": (),
    "smallint": ("tinyint",),
    "int": ("tinyint", "smallint"),
    "bigint": ("tinyint", "smallint", "int"),
    "float": ("int", "smallint"),
    "double": ("float", "int", "decimal(5,2)"),
    "decimal(9,2)": ("decimal(5,2)", "int"),
    "decimal(20,4)": ("decimal(9,2)", "bigint"),
    "string": ("int", "boolean", "decimal(9,2)", "date", "double"),
    "date": (),
    "timestamp": ("date", "timestamp_ntz"),
    "timestamp_ntz": ("date",),
    "varchar(4)": ("string",),
    "char(4)": ("string",),
}
"""Types that are always, or mostly, stored in a column of a type."""

ATOMS = ("boolean", *NEAR, "binary")
KEYS = ("bigint", "int", "string", "date", "decimal(9,2)", "timestamp", "boolean", "double", "binary")
PARTITIONS = ("string", "int", "date", "boolean", "bigint", "decimal(9,2)", "timestamp", "double", "binary")

NAMES = ("a", "b", "c", "city", "zip", "Name", "value")
ODD_NAMES = (
    *("user-agent", "a b", "select", "ä", "s", "t", "x`y", "row", "old", "new", "rows", "field0", "key0"),
    *("most", "_lakewarden_changed", "count", "a.b", "50%"),
)

_TEXTS = (
    *("", " ", "a", "B", "7", "07", "2026-01-02", "true", "ä", "e\u0301"),
    *("a/b=c%", "abcde", "x  ", "%20", "a'b\""),
)
_DAYS = (-719162, -141428, -141427, -1, 0, 20455, 20456, 2932896, 3663889)
_INSTANTS = (
    -62135596800000000,
    -12219292800000001,
    -1,
    0,
    1764000000123456,
    1774747800000000,
    253402300799999999,
)
_DOUBLES = ("0.0", "-0.0", "1.0", "1.5", "-2.5", "NaN", "Infinity", "-Infinity", "1E300", "3000000000")
_DECIMALS = ("0", "1", "-0.05", "1.5", "99.99", "-7")


def texts(value: str) -> str:
    return f"CAST(X'{value.encode().hex()}' AS string)" if value else "''"


def values(kind: Kind, *, few: bool = False) -> st.SearchStrategy[str]:
    """Return SQL expressions of a type. `few` are often equal."""
    match kind:
        case Struct():
            fields = [
                values(field.kind) if not field.nullable else st.one_of(values(field.kind), _null(field.kind))
                for field in kind.fields
            ]
            names = [texts(field.name) for field in kind.fields]
            return st.tuples(*fields).map(
                lambda found: (
                    f"named_struct({', '.join(f'{name}, {value}' for name, value in zip(names, found, strict=True))})"
                )
            )
        case Array():
            listed = st.lists(st.one_of(values(kind.element), _null(kind.element)), min_size=1, max_size=2)
            return st.one_of(
                listed.map(lambda found: f"array({', '.join(found)})"),
                st.just(f"CAST(array() AS {ddl(kind)})"),
            )
        case Map():
            entries = st.lists(
                st.tuples(values(kind.key), st.one_of(values(kind.value), _null(kind.value))),
                min_size=1,
                max_size=2,
                unique_by=lambda entry: entry[0],
            )
            return st.one_of(
                entries.map(lambda found: f"map({', '.join(f'{key}, {value}' for key, value in found)})"),
                st.just(f"CAST(map() AS {ddl(kind)})"),
            )
        case str():
            return _atoms(kind, few=few)


def _null(kind: Kind) -> st.SearchStrategy[str]:
    return st.just(f"CAST(NULL AS {ddl(kind)})")


def _atoms(kind: str, *, few: bool) -> st.SearchStrategy[str]:
    if kind in INTEGERS:
        bits = INTEGERS[kind]
        numbers = [0, 1, 2, -3]
        if not few:
            numbers += [2**bits - 1, -(2**bits), 2 ** (bits - 1) + 1]
        return st.sampled_from(numbers).map(lambda number: f"CAST('{number}' AS {kind})")
    if kind == "boolean":
        return st.sampled_from(["true", "false"])
    if kind in {"float", "double"}:
        return st.sampled_from(_DOUBLES[:6] if few else _DOUBLES).map(
            lambda text: f"CAST('{text}' AS {kind})"
        )
    if kind.startswith("decimal"):
        return st.sampled_from(_DECIMALS).map(lambda text: f"CAST('{text}' AS {kind})")
    if kind == "date":
        return st.sampled_from(_DAYS[5:7] if few else _DAYS).map(lambda day: f"date_from_unix_date({day})")
    if kind == "timestamp":
        return st.sampled_from(_INSTANTS[4:6] if few else _INSTANTS).map(
            lambda at: f"timestamp_micros({at}L)"
        )
    if kind == "timestamp_ntz":
        chosen = st.sampled_from(_INSTANTS[4:6] if few else _INSTANTS)
        return chosen.map(lambda at: f"CAST(timestamp_micros({at}L) AS timestamp_ntz)")
    if kind == "binary":
        return st.sampled_from(["X''", "X'00'", "X'ff00fe'", "X'6162'"])
    return st.sampled_from(_TEXTS).map(texts)


def ddl(kind: Kind) -> str:
    match kind:
        case Struct():
            fields = (
                f"{quoted(field.name)}: {ddl(field.kind)}{'' if field.nullable else ' NOT NULL'}"
                for field in kind.fields
            )
            return f"struct<{', '.join(fields)}>"
        case Array():
            return f"array<{ddl(kind.element)}>"
        case Map():
            return f"map<{kind.key}, {ddl(kind.value)}>"
        case str():
            return kind


def _in_batch(kind: Kind) -> Kind:
    """Return a type as a batch has it: texts have no length."""
    match kind:
        case Struct():
            return Struct(
                tuple(Column(field.name, _in_batch(field.kind), field.nullable) for field in kind.fields)
            )
        case Array():
            return Array(_in_batch(kind.element))
        case Map():
            return Map(str(_in_batch(kind.key)), _in_batch(kind.value))
        case str():
            return "string" if "char" in kind else kind


def kinds(atoms: tuple[str, ...], depth: int = 2) -> st.SearchStrategy[Kind]:
    atom: st.SearchStrategy[Kind] = st.sampled_from(atoms)
    if depth == 0:
        return atom
    inner = kinds(atoms, depth - 1)
    fields = st.lists(
        st.builds(Column, st.sampled_from(NAMES), inner, st.sampled_from([True, True, True, False])),
        min_size=1,
        max_size=3,
        unique_by=lambda column: column.name.lower(),
    )
    plain = tuple(one for one in atoms if one in {"string", "int", "bigint", "date"})
    return st.one_of(
        atom,
        atom,
        fields.map(lambda found: Struct(tuple(found))),
        inner.map(Array),
        st.builds(Map, st.sampled_from(plain), inner),
    )


@st.composite
def _near(draw: st.DrawFn, kind: Kind) -> Kind:
    """Return a type whose values are stored in a column of another type: fields in another order, narrower ones."""
    match kind:
        case Struct():
            fields = [
                Column(field.name, draw(_near(field.kind)), field.nullable)
                for field in draw(st.permutations(kind.fields))
            ]
            return Struct(tuple(fields))
        case Array():
            return Array(draw(_near(kind.element)))
        case Map():
            return Map(kind.key, draw(_near(kind.value)))
        case str():
            return draw(st.sampled_from([kind, kind, *NEAR.get(kind, ())]))


@st.composite
def _far(draw: st.DrawFn, kind: Kind, atoms: tuple[str, ...]) -> Kind:
    """Return a type that may not fit at all."""
    match kind:
        case Struct():
            change = draw(st.sampled_from(["less", "more", "renamed", "case", "kind"]))
            fields = list(kind.fields)
            number = draw(st.integers(0, len(fields) - 1))
            field = fields[number]
            match change:
                case "less" if len(fields) > 1:
                    del fields[number]
                case "more":
                    fields.append(Column("another", "int"))
                case "renamed":
                    fields[number] = Column("another", field.kind, field.nullable)
                case "case":
                    fields[number] = Column(field.name.swapcase(), field.kind, field.nullable)
                case _:
                    fields[number] = Column(field.name, draw(_far(field.kind, atoms)), field.nullable)
            return Struct(tuple(fields))
        case Array():
            return Array(draw(_far(kind.element, atoms)))
        case Map():
            return Map(kind.key, draw(_far(kind.value, atoms)))
        case str():
            return draw(st.sampled_from(atoms))


def _atoms_of(table_format: str) -> tuple[str, ...]:
    """Return the types that the tests of a format have."""
    left_out = {
        "iceberg": {"char(4)", "varchar(4)", "tinyint", "smallint"},
        "hudi": {"char(4)", "varchar(4)", "tinyint", "smallint", "timestamp_ntz"},
        "paimon": {"char(4)"},
    }.get(table_format, set())
    return tuple(atom for atom in ATOMS if atom not in left_out)


@dataclass(frozen=True, slots=True)
class _Table:
    key: Column
    partitions: tuple[Column, ...]
    others: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.key, *self.partitions, *self.others, Column("seq", "int"))


@st.composite
def situations(draw: st.DrawFn, table_format: str, mode: str) -> Situation:
    atoms = _atoms_of(table_format)
    odd = draw(st.sampled_from([False, False, True]))
    pool = (*NAMES, *ODD_NAMES) if odd else NAMES
    names = draw(st.lists(st.sampled_from(pool), min_size=2, max_size=5, unique_by=str.lower))
    keyed = mode == "key" or table_format == "hudi"
    key = Column("id", draw(st.sampled_from(KEYS[:6] if keyed else KEYS)), nullable=not keyed)
    count = draw(st.integers(0, min(2, len(names) - 1)))
    partitions = tuple(
        Column(name, draw(st.sampled_from(PARTITIONS[:5] if keyed else PARTITIONS)), nullable=not keyed)
        for name in names[:count]
    )
    others = tuple(
        Column(name, draw(kinds(atoms)), nullable=draw(st.sampled_from([True, True, True, False])) or keyed)
        for name in names[count:]
    )
    table = _Table(key, partitions, others)
    batches = draw(st.lists(_batch(table, atoms), min_size=1, max_size=3))
    columns = ", ".join(
        f"{quoted(column.name)} {ddl(column.kind)}{'' if column.nullable else ' NOT NULL'}"
        for column in table.columns
    )
    return Situation(
        columns=columns,
        batches=tuple(batches),
        partitioned_by=tuple(draw(_field(table_format, column)) for column in partitions),
        keys=("id",),
        order_by="seq",
        settings=draw(_settings()),
        declared=draw(st.booleans()),
        properties=MAPPED if odd and table_format == "delta" else (),
    )


@st.composite
def _field(draw: st.DrawFn, table_format: str, column: Column) -> str:
    """Return a partition column, or a transform of it."""
    times = ("days({})", "months({})", "years({})", "bucket(3, {})")
    texts = ("truncate(2, {})", "bucket(3, {})")
    kinds = dict.fromkeys(("int", "bigint", "string", "decimal(9,2)", "binary"), texts)
    functions = (kinds | {"timestamp": (*times, "hours({})"), "date": times}).get(str(column.kind), ())
    if table_format != "iceberg" or not column.name.isalnum() or not column.name.isascii():
        return column.name
    return draw(st.sampled_from([column.name, *(function.format(column.name) for function in functions)]))


@st.composite
def _settings(draw: st.DrawFn) -> tuple[tuple[str, str], ...]:
    policy = draw(st.sampled_from(["ANSI"] * 6 + ["STRICT", "LEGACY"]))
    zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]))
    ansi, sensitive = draw(st.booleans()), draw(st.sampled_from([False, False, False, True]))
    return (
        ("spark.sql.ansi.enabled", str(ansi).lower()),
        ("spark.sql.storeAssignmentPolicy", policy),
        ("spark.sql.caseSensitive", str(sensitive).lower()),
        ("spark.sql.session.timeZone", zone),
    )


@st.composite
def _batch(draw: st.DrawFn, table: _Table, atoms: tuple[str, ...]) -> str:
    """Return a SELECT of one to three rows."""
    columns = [
        column
        if column.name in {"id", "seq"}
        else Column(column.name, draw(_near(_in_batch(column.kind))), column.nullable)
        for column in table.columns
    ]
    change = draw(st.sampled_from(["none"] * 4 + ["kind", "kind", "less", "more", "case", "null", "key"]))
    number = draw(st.integers(1, len(columns) - 2))
    chosen = columns[number]
    match change:
        case "kind":
            columns[number] = Column(
                chosen.name, draw(_far(_in_batch(chosen.kind), _plain(atoms))), chosen.nullable
            )
        case "less" if len(columns) > 3:
            del columns[number]
        case "more":
            columns.append(Column("another_one", "int"))
        case "case":
            columns[number] = Column(chosen.name.swapcase(), chosen.kind, chosen.nullable)
        case "null":
            columns[number] = Column(chosen.name, chosen.kind, nullable=True)
        case "key":
            columns[0] = Column("id", draw(st.sampled_from(_plain(atoms))), columns[0].nullable)
        case _:
            pass
    columns = draw(st.permutations(columns))
    few = {table.key.name, *(column.name for column in table.partitions)}
    rows = []
    for row in range(draw(st.integers(1, 3))):
        cells = []
        for column in columns:
            if column.name == "seq":
                cells.append(str(row))
                continue
            found = values(column.kind, few=column.name in few)
            cells.append(
                draw(st.one_of(found, found, found, _null(column.kind)) if column.nullable else found)
            )
        rows.append(f"({', '.join(cells)})")
    listed = ", ".join(quoted(column.name) for column in columns)
    return f"SELECT * FROM VALUES {', '.join(rows)} AS t({listed})"  # noqa: S608 - it consists of its own texts


def _plain(atoms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(atom for atom in atoms if "char" not in atom)
