"""A simulated world around the scheduler: clock, requests, device, failures, and the laws that hold after every step.

Knows both schedulers (the C++ core and the reference) through their common surface; knows nothing about tensors.
Start at `simulation.py`.
"""
