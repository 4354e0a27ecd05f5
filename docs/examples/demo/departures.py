"""A job like yours: it upserts when each flight left, and its schedule, to the table that `arrivals.py` writes, too.

python departures.py LAKE.json TABLE KAFKA ADMISSION DAYS
"""
# ruff: noqa: INP001 - a script

import sys

from lake import Lake

from lakewarden.spark_jobs import CommitGate

place, table, kafka, admission, days = sys.argv[1:]
lake = Lake.read(place)
spark = lake.session("departures")

gate = CommitGate(kafka)
write = gate.foreach_batch(lake.sink(table), writer="departures", admission=admission)
query = (
    lake.feed(spark, "departures", days=int(days))
    .writeStream.foreachBatch(write)
    .option("checkpointLocation", lake.checkpoint(table, "departures"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
