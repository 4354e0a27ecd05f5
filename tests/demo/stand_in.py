"""A stand-in for `lakewarden.spark_jobs.jobs.demo`, whose queries write no row. STAND_IN selects how they end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

plan, action = Path(sys.argv[1]), sys.argv[2]
if action == "read":
    import pyarrow as pa
    from pyarrow import parquet

    names = json.loads(plan.read_text())["columns"]
    (plan.parent / "rows").mkdir()
    parquet.write_table(pa.table({name: [] for name in names}), plan.parent / "rows" / "alone")
if "-" not in action:
    sys.exit()
_, role, starts = action.split("-")
for what in ("intent", "requested", "completed"):
    step = {"at": time.time(), "what": what, "table": "t", "writer": f"{role}:5f3a", "attempt": 1}
    print(json.dumps({**step, "transaction": f"{role}{starts}", "batch_id": int(starts)}), flush=True)
match os.environ["STAND_IN"], role:
    case "fail-once", "arrivals" if starts == "0":
        sys.exit("File deletion conflicts detected!")
    case "fail", "arrivals":
        sys.exit("no space left on device")
    case "hang", _:
        print("hangs", flush=True)
        time.sleep(600)
    case _:
        pass
