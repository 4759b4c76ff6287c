"""The definition of correct: DeepSeek-V4.1 in plain PyTorch and plain Python. It knows nothing of `optimized/`.

`import reference` stays light: torch is loaded by the submodules that compute.
"""
