"""Generators of cases: configurations, batches of requests, and what the reference makes of them.

Every one is a function of a seed, and what it returns is enough to run the case again.
"""
