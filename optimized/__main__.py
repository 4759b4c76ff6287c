"""`python -m optimized …`: the same as the command `counterpoint …`. Knows nothing but where the command line lives."""

from __future__ import annotations

import sys

from optimized.cli import main

if __name__ == "__main__":
    sys.exit(main())
