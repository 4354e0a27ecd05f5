"""Unit tests of what operators ask."""
