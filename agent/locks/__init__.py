"""Locks that a process holds: the keeper of one lock, the locks of an agent's tables, and the commands `lakewarden lock`."""
