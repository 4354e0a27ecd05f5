"""`lakewarden watch`: reads tables' own metadata, and reports writers that don't use the gate. Start at `watcher.py`."""
