"""The harness: shows that both voices agree, and that the checks themselves can fail.

Knows the public surface of `reference` and `optimized`; neither of them knows that this package exists.
Start at `python -m equivalence list`.
"""
