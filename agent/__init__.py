"""The asynchronous shell around `lakewarden.handlers`: Kafka, object stores, timers, configuration and the command line.

No rule about conflicts, grants or locks is in this package; those are in `lakewarden.handlers`.
"""
