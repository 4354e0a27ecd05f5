"""`make bench PEERS=delta,iceberg,hudi,paimon`: writers of one table, by the format's own way and through the gate.

    workload.py   the batches of the writers, and the rows that the table must have at the end
    tables.py     what differs between the formats
    driver.py     one run: one driver process with all writers as streaming queries
    compare.py    all runs, one after the other, and the table that is printed

and for Paimon, whose writers need no Spark, `paimon_writer.py` and `paimon_commits.py`.

The ways:

    native        the format's own statement and its own conflict check; a query that dies is started again by a supervisor
    optimistic    the format's sink in `CommitGate.foreach_batch`, every batch computes at once
    auto          the same with the default admission
"""
