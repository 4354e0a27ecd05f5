"""A stand-in for `lakewarden.spark_jobs.jobs.demo_writer` with the same flags. STAND_IN selects how it ends."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

arguments = argparse.ArgumentParser()
for flag in ("role", "input", "table", "keys", "checkpoint", "events", "max-files-per-trigger"):
    arguments.add_argument(f"--{flag}", required=True)
arguments.add_argument("--without-agent", action="store_true", required=True)
given = arguments.parse_args()

starts = len(list(Path(given.events).parent.glob(f"{given.role}-*.jsonl")))
with Path(given.events).open("a") as events:
    for what in ("intent", "requested", "completed"):
        step = {"at": time.time(), "what": what, "table": given.table, "writer": given.role}
        print(json.dumps({**step, "transaction": f"{given.role}{starts}", "batch_id": starts}), file=events)
match os.environ["STAND_IN"], given.role:
    case "fail-once", "arrivals" if starts == 0:
        sys.exit("File deletion conflicts detected!")
    case "fail", "arrivals":
        sys.exit("no space left on device")
    case "hang", _:
        print("hangs", flush=True)
        time.sleep(600)
    case _:
        pass
