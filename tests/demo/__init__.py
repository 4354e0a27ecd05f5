"""Tests of the demo: its data, its figures, the comparison of the table, and real runs."""
