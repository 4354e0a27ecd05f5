"""The owner of one partition of `writers`, and its parts. `owner.py` says which part does what."""
