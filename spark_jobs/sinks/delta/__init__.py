"""The sink for Delta Lake tables."""
