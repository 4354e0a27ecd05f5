"""`python -m lakewarden.spark_jobs.conflicts_job`: the documented name of the program in `jobs/conflicts.py`."""

import sys

from lakewarden.spark_jobs.jobs.conflicts import main

if __name__ == "__main__":
    sys.exit(main())
