"""What a commit of a Paimon table decides from the answers of its store. Start at `publish.py`."""
