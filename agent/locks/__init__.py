"""Locks kept by a process: the keeper of one lock, the locks of an agent's tables, and the `lock` commands."""
