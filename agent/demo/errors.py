"""The demo's error."""

from __future__ import annotations


class DemoError(Exception):
    """The demo failed. The message is one line: what happened, and what to do or where to look."""
