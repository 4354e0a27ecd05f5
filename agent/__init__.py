"""Run: the asynchronous shell around the pure core. Kafka, stores, timers, configuration and the command line.

It decides nothing: what follows from an event is in `lakewarden.handlers`.
"""
