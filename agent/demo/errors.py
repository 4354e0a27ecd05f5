"""The one way in which the demo fails on purpose."""

from __future__ import annotations


class DemoError(Exception):
    """One line for the person who ran the demo: what went wrong, and what to do or where to look."""
