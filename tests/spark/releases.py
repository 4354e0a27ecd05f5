"""Runs the tests of the gate, the sinks and the jobs on this environment's PySpark: `make test-releases RELEASE=4.2`.

    python -m tests.spark.releases newest    # with the releases of the formats that messages name
    python -m tests.spark.releases older     # the tests of each sink with each other release that the table has for this PySpark
    python -m tests.spark.releases all
    python -m tests.spark.releases platforms    # the sinks' tests with each platform's releases of the formats

Further arguments are pytest's. `make test-spark35` is `newest` on PySpark 3.5.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pyspark

from lakewarden.spark_jobs.sinks.releases import FORMATS, SPARK, minor, release_of
from tests.pages.releases import PLATFORMS
from tests.spark.formats import JARS

_SINKS: Final = "tests/spark/sinks"
_FENCE: Final = f"{_SINKS}/test_delta_fence.py"
HAS_FENCE: Final = SPARK[minor(pyspark.__version__)].hadoop >= "3.4"
"""Hadoop's S3A has conditional puts from then on."""
COMMON: Final = (
    "tests/spark/gate",
    "tests/spark/jobs",
    "tests/spark/streaming/test_foreach_batch.py",
    f"{_SINKS}/test_batch_content.py",
    f"{_SINKS}/test_contract.py",
    f"{_SINKS}/test_merge.py",
    f"{_SINKS}/test_partition_paths.py",
    "tests/spark/rows",
    *(
        f"--ignore=tests/spark/{name}.py"
        for name in (
            "gate/test_async_gate",
            "gate/test_gate_protocol",
            "gate/test_logging",
            "gate/test_paimon_processes_example",
            "gate/test_without_spark",
            "rows/test_java_reads",
        )
    ),
)
"""The ignored ones need no Spark."""
SELECTED: Final = ("-m", "not matrix and (hudi or not wide)")
"""What is wide is the same on each PySpark, but for Hudi, which has one. `ARGS="-m 'not matrix'"` runs it."""
OF_FORMAT: Final = {
    "delta": (f"{_SINKS}/test_delta_sink.py", _FENCE),
    "iceberg": (f"{_SINKS}/test_iceberg_sink.py",),
    "hudi": (
        f"{_SINKS}/test_hudi_contest.py",
        f"{_SINKS}/test_hudi_sink.py",
        f"{_SINKS}/test_hudi_watched.py",
        f"{_SINKS}/test_exactly_once.py",
    ),
}
ON_ANOTHER_RELEASE: Final = {
    "delta": (f"{_SINKS}/test_delta_sink.py", "tests/spark/rows", "-k", "delta"),
    "iceberg": (f"{_SINKS}/test_iceberg_sink.py",),
    "hudi": (*COMMON, *OF_FORMAT["hudi"], "-k", "hudi"),
}


def runs(what: str) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """Yield environment variables and pytest's arguments."""
    if what in {"newest", "all"}:
        yield {}, (*COMMON, *(each for form in JARS for each in OF_FORMAT[form]), *SELECTED)
    for form, its in FORMATS.items() if what in {"older", "all"} else ():
        for jar in its.jars(pyspark.__version__):
            if jar not in JARS.values():
                yield {f"LAKEWARDEN_TEST_{form.upper()}": release_of(jar)}, ON_ANOTHER_RELEASE[form]
    bring = {
        tuple(each for each in platform.accepted() if (each[0] == "hudi") is alone)
        for platform in PLATFORMS
        for alone in (True, False)  # Hudi's jar comes alone
        if minor(platform.spark) == minor(pyspark.__version__)
    }
    bring -= {formats for formats in bring if any(set(formats) < set(more) for more in bring)}
    for formats in sorted(filter(None, bring)) if what == "platforms" else ():
        yield (
            {f"LAKEWARDEN_TEST_{form.upper()}": release for form, release in formats},
            (
                f"{_SINKS}/test_contract.py",
                *(each for form, _ in formats for each in OF_FORMAT[form] if each != _FENCE or HAS_FENCE),
            ),
        )


def main(what: str, arguments: list[str]) -> None:
    """Exit with 1 if a run failed."""
    failed = []
    for variables, tests in runs(what):
        named = " ".join(f"{name}={value}" for name, value in variables.items())
        print(f"== PySpark {pyspark.__version__} {named}", flush=True)
        pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        command = [*pytest, *tests, *arguments]
        if subprocess.run(command, env=os.environ | variables, check=False).returncode != 0:
            failed.append(named or "the newest releases")
    sys.exit(f"failed on PySpark {pyspark.__version__}: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
