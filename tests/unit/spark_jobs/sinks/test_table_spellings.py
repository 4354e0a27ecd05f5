"""One folder has one table URI, whatever spelling of it a program reads: what each reader takes for the folder is compared.

`tests/spark/sinks/cases.py` has the real tables of all sinks in a folder with such a name, and Hadoop's `Path`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import anyio
import pytest
from hypothesis import given, strategies as st
from pyarrow import ArrowInvalid, fs
from pypaimon.filesystem.local_file_io import LocalFileIO

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores.locations import parse_location
from lakewarden.agent.watching.files import Buckets
from lakewarden.events import canonical_table, object_uri
from lakewarden.spark_jobs import HudiSink
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.paimon.table import address

PROPERTIES = ".hoodie/hoodie.properties"

NAMES = st.one_of(
    st.sampled_from(
        [
            *("a b", " a", "a ", "a%20b", "50%", "%", "a%2Fb", "a#b", "a?b"),
            *("中文", "ü", "u\u0308", "a;b", "a:b", "~", "...", "a\\b"),
        ]
    ),
    st.text(
        st.sampled_from("ab %?#20zé\u0308;:&+=@[]{}'\"\\|^`~.,") | st.characters(codec="utf-8"),
        min_size=1,
        max_size=12,
    ),
).filter(
    lambda name: (
        "/" not in name and "\x00" not in name and name not in {".", ".."} and len(name.encode()) < 200
    )
)
"""Of one folder."""


def spellings(path: str) -> Iterator[str]:
    """What people and programs write for a local path."""
    yield from (path, f"{path}/", f"//{path}", f"/.{path}", path.replace("/", "//"), f"{path}/.")
    for spelled in (path, Path(path).as_uri().removeprefix("file://")):
        yield from (
            f"file:{spelled}",
            f"file://{spelled}",
            f"file:///{spelled}",
            f"file://localhost{spelled}",
            f"FILE://{spelled}/",
        )


def by_hadoop(spelled: str) -> str:
    """What Hadoop's `Path` takes: the path of a URI as it is."""
    scheme, colon, rest = spelled.partition(":")
    if not colon or "/" in scheme:
        return spelled
    return "/" + rest.removeprefix("//").partition("/")[2] if rest.startswith("//") else rest


def by_paimon(spelled: str) -> str:
    return str(LocalFileIO().to_filesystem_path(spelled))


def by_pyarrow(spelled: str) -> str | None:
    try:
        return str(fs.FileSystem.from_uri(spelled)[1])
    except ArrowInvalid:
        return None


def by_python(spelled: str) -> str:
    parts = urlsplit(spelled)
    return unquote(parts.path) if parts.scheme == "file" else spelled


READERS: tuple[Callable[[str], str | None], ...] = (by_hadoop, by_paimon, by_pyarrow, by_python)


def normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")


@given(NAMES, NAMES)
def test_every_reader_takes_an_accepted_spelling_for_the_same_folder(parent: str, name: str) -> None:
    """A reader may refuse it."""
    path = f"/lake/{parent}/{name}"
    for spelled in spellings(path):
        try:
            uri = canonical_table(spelled)
        except ValueError:
            continue
        taken = {normal(found) for reader in READERS if (found := reader(spelled)) is not None}
        assert taken == {uri.removeprefix("file://")}, spelled
        assert canonical_table(uri) == uri


@given(NAMES)
def test_a_table_is_read_where_it_is_or_refused(name: str) -> None:
    """By the sinks of Paimon and Hudi, by the watcher, and by the agent that looks for Hudi's properties."""
    with TemporaryDirectory() as root:
        place = Path(root) / name / "t"
        (place / ".hoodie").mkdir(parents=True)
        (place / PROPERTIES).write_text(f"hoodie.table.name={len(name)}\n")
        try:
            uri = canonical_table(str(place))
        except ValueError:
            with pytest.raises(ValueError, match=r"table URI|local table"):
                HudiSink(str(place))
            with pytest.raises(ValueError, match=r"table URI|local table"):
                address(str(place))
            return

        body = (place / PROPERTIES).read_bytes()
        assert LocalFileIO().to_filesystem_path(address(str(place)).uri) == str(place)
        assert HudiFiles(uri).properties() == {"hoodie.table.name": str(len(name))}
        assert anyio.run(Buckets(Settings()).table(uri).read, PROPERTIES) == body
        assert Path("/" + parse_location(object_uri(uri, f"/{PROPERTIES}")).key).read_bytes() == body


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "abfss://c@account.dfs.core.windows.net/t",
            "ends the process if it finds no credentials: pass `filesystem`",
        ),
        (
            "wasbs://c@account.blob.core.windows.net/t",
            "pyarrow can't open the table's store: Unrecognized filesystem",
        ),
        ("hdfs://namenode/t", "pyarrow can't open the table's store"),
    ],
)
def test_a_store_that_can_not_be_read_is_refused(table: str, message: str) -> None:
    """Azure's client in pyarrow ends the process. The others raise errors of Arrow."""
    with pytest.raises(ValueError, match=message):
        HudiSink(table)
