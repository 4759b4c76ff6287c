"""Measurements of speed. Knows the public surface of `reference` and `optimized`; neither knows this package."""
