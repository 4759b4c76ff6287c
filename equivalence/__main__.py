"""`python -m equivalence`: hands the command line to `equivalence.cli` and knows nothing else."""

import sys

from equivalence.cli import main

sys.exit(main(sys.argv[1:]))
