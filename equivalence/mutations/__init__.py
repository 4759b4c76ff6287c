"""Faults planted on purpose: a check that misses one is not a check. The tables name them, the engine plants them."""
