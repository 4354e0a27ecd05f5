"""`make bench PEERS=delta,iceberg,hudi,paimon`: writers of one table, by the format's own way and through the gate.

    workload.py   the batches of the writers, and the rows that the table must have at the end
    tables.py     what differs between the formats
    driver.py     one run: one driver process with all writers as streaming queries
    clients.py    which attempt of a native write to Hudi has requested an instant
    compare.py    all runs, one after the other, and the table that is printed

and for Paimon, whose writers need no Spark, `paimon_writer.py` and `paimon_commits.py`.

The ways:

    native                the format's own statement and its own conflict check; a supervisor starts a dead query again
    native-direct         Hudi only: the same with its early conflict detection, on direct markers
    native-asynchronous   Hudi only: the same with its early conflict detection by the timeline server, every 30 s
    optimistic            the format's sink in `CommitGate.foreach_batch`, every batch computes at once
    auto                  the same with the default admission

The tables of Delta and Iceberg are on the local disk. Hudi's are on an S3 server, through proxies that count the requests of the
driver and of the agent. All ways use Hudi's storage-based lock there.
"""
