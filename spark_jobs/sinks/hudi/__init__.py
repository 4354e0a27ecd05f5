"""The sink for Hudi tables."""
