"""The demo: its data, its check, its figures, and one real run."""
