"""`python -m lakewarden.spark_jobs.waste_job`: the documented name of the program in `jobs/waste.py`."""

import sys

from lakewarden.spark_jobs.jobs.waste import main

if __name__ == "__main__":
    sys.exit(main())
