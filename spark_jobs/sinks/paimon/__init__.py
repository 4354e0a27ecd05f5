"""The sink for Paimon tables."""
