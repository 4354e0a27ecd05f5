"""Servers that tests start for themselves."""
