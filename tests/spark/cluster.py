"""A standalone cluster of Spark, from PySpark's own files: a master and two workers, so executors are processes of their own.

With `LAKEWARDEN_TEST_CLUSTER=1` (`make test-matrix`), the tests' Spark session runs on it, with speculation and dynamic
allocation. Its executors' Python has pyarrow and pandas for functions of the tests, and no lakewarden.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from lakewarden.agent.bound_child import bound
from tests.spark.formats import HAS_HUDI
from tests.waiting import wait_until

ON_CLUSTER: Final = os.environ.get("LAKEWARDEN_TEST_CLUSTER") == "1"
BARE_PYTHON: Final = sys._base_executable  # type: ignore[attr-defined]
"""The Python below this environment."""
SPARK_HOME: Final = Path(pyspark.__file__).parent
PACKAGES: Final = ("dateutil", "numpy", "numpy.libs", "pandas", "pyarrow", "pytz", "six.py")
MASTER: Final = "LAKEWARDEN_TEST_MASTER"
"""Variable with the URL of the master, for the drivers that a test starts."""


@contextmanager
def running_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of a session on the cluster."""
    packages = folder / "packages"
    packages.mkdir()
    for name in PACKAGES:
        (packages / name).symlink_to(SPARK_HOME.parent / name)
    os.environ["PYSPARK_PYTHON"] = BARE_PYTHON
    with ExitStack() as processes:
        log = folder / "master.log"
        os.environ[MASTER] = _started(processes, log, "127.0.0.1", r"(spark://\S+:\d+)", "master.Master")
        for number in (1, 2):  # Spark runs no second attempt of a task on the host of the first
            size = ("--cores", "2", "--memory", "3g", "--work-dir", f"{folder / f'worker-{number}'}")
            log, host = folder / f"worker-{number}.log", f"127.0.0.{number}"
            worker = ("worker.Worker", *size, os.environ[MASTER])
            _started(processes, log, host, "(registered with master)", *worker)
        yield {
            "master": os.environ[MASTER],
            "spark.pyspark.python": BARE_PYTHON,
            "spark.pyspark.driver.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": f"{packages}",
            "spark.executor.cores": "2",
            "spark.executor.memory": "1g",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.maxExecutors": "2",
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
            "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
            "spark.speculation": f"{not HAS_HUDI}".lower(),  # Hudi refuses to write with it
            "spark.speculation.interval": "200ms",
            "spark.speculation.quantile": "0.5",
        }


def _started(processes: ExitStack, log: Path, host: str, ready: str, *program: str) -> str:
    """Start a program of the cluster. Return what `ready` matches in its log."""
    name, *arguments = program
    command = [f"{SPARK_HOME / 'bin' / 'spark-class'}", f"org.apache.spark.deploy.{name}"]
    command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            bound(command),
            stdout=file,
            stderr=file,
            env=variables | {"SPARK_HOME": f"{SPARK_HOME}", "SPARK_LOCAL_IP": host},
        )
    processes.callback(process.wait)
    processes.callback(process.terminate)

    def found() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()[-2000:]
        return re.search(ready, log.read_text())

    match = wait_until(found)
    assert match is not None, "it was waited for"
    return match[1]
