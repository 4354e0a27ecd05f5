"""The gate in a program that has neither Spark nor a table format's library."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

absent = ["pandas", "pyarrow", "pypaimon", "pyspark"]
sys.modules.update(dict.fromkeys(absent))

from lakewarden import spark_jobs

for name in spark_jobs.__all__:
    assert getattr(spark_jobs, name) is not None, name

gate = spark_jobs.CommitGate("127.0.0.1:1")
try:
    with gate.transaction(table="s3://lake/trips", writer="ingest", batch_id=7):
        print("the body ran")
except spark_jobs.AgentUnreachable as error:
    print(error)
gate.close()
assert not [name for name in sys.modules if name.partition(".")[0] in absent and sys.modules[name]]
"""


def test_every_public_name_is_there_and_a_transaction_reaches_for_kafka() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kafka is unreachable: subscribing to decisions failed")
