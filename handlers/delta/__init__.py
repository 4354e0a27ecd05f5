"""What the log of a Delta table says to a reader that has no Spark: its commits, and how its partitions are spelled."""
