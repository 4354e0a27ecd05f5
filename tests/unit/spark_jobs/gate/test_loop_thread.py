import subprocess
import sys

NEVER_CLOSED = """
import anyio
from lakewarden.spark_jobs.gate.kafka import LoopThread

kept = LoopThread("127.0.0.1:1", name="kept")
kept.call(lambda: anyio.sleep(0), timeout=5, doing="nothing")
print("ended")
"""


def test_a_loop_that_was_never_closed_does_not_block_the_exit() -> None:
    """This happened to a driver that published markers through an executor's channel: its process never ended."""
    run = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSED], capture_output=True, text=True, timeout=120, check=False
    )

    assert run.stdout == "ended\n"
    assert run.returncode == 0
