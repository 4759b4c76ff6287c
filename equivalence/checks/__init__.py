"""The checks, one module or package each; `equivalence.registry` lists them."""
