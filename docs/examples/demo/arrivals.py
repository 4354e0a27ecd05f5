"""A job like yours: it upserts when each flight arrived, and how late, to the table that `departures.py` writes, too.

python arrivals.py LAKE.json TABLE KAFKA ADMISSION DAYS
"""
# ruff: noqa: INP001 - a script

import sys

from lake import Lake

from lakewarden.spark_jobs import CommitGate

place, table, kafka, admission, days = sys.argv[1:]
lake = Lake.read(place)
spark = lake.session("arrivals")

gate = CommitGate(kafka)
write = gate.foreach_batch(lake.sink(table), writer="arrivals", admission=admission)
query = (
    lake.feed(spark, "arrivals", days=int(days))
    .writeStream.foreachBatch(write)
    .option("checkpointLocation", lake.checkpoint(table, "arrivals"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
