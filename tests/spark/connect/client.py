"""A client of Spark Connect, a process of its own: PySpark's functions are either classic's or Connect's in one process.

It starts the queries that its argument describes, and stays until they have ended or its standard input is closed.
It prints lines of JSON: that a query has started, and its id with the error by which it ended.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitGate
from tests.spark.connect import bodies


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(given["url"]).create()
    gate = CommitGate(given["kafka"], topic_prefix=given["prefix"], **given.get("gate", {}))
    queries: list[Any] = []
    threading.Thread(target=_stop_on_input, args=(queries,), daemon=True).start()
    for described in given["queries"]:
        queries.append(start(spark, gate, described))
        print(json.dumps({"started": queries[-1].id}), flush=True)
        if given["in_turn"]:
            wait_for(queries[-1])
    if not given["in_turn"]:
        for query in reversed(queries):
            wait_for(query)


def wait_for(query: Any) -> None:
    error = None
    try:
        query.awaitTermination()
    except Exception as raised:  # noqa: BLE001 - the test looks at it
        error = str(raised)
    print(json.dumps({"id": query.id, "error": error}), flush=True)


def start(spark: Any, gate: CommitGate, query: dict[str, Any]) -> Any:
    """Start a query over files of JSON, one a batch, or that of a block of docs/recipes.md."""
    rows = spark.readStream.schema(query["schema"]).option("maxFilesPerTrigger", 1).json(query["source"])
    if "block" in query:
        spark.conf.set("spark.sql.streaming.checkpointLocation", query["checkpoint"])
        names = {"gate": gate, "flights": rows}
        exec(query["block"], names)  # noqa: S102 - a page of this repository
        return names["query"]
    write = getattr(bodies, query["body"])(**query.get("arguments", {}))
    options = {"admission": "optimistic"} | query.get("options", {})
    function = gate.foreach_batch(write, writer=query["writer"], **options)
    if query.get("in_thread"):
        function = bodies.in_a_thread(function)
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", query["checkpoint"])
    if "name" in query:
        writer = writer.queryName(query["name"])
    return writer.trigger(availableNow=True).start()


def _stop_on_input(queries: list[Any]) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            for query in queries:
                query.stop()


if __name__ == "__main__":
    main()
