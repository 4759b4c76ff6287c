"""`python -m equivalence.simulator`: worlds one after another until a law breaks; needs no torch.

Knows how to draw and run worlds; the check `scheduler` runs the same worlds under the harness. Exit status: 0 every law
held, 1 one did not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time

from equivalence.simulator.simulation import Simulation
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import draw


def main() -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m equivalence.simulator", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first world (default 0)")
    parser.add_argument("--worlds", type=int, default=100, metavar="N", help="how many seeds (default 100)")
    parser.add_argument("--steps", type=int, metavar="N", help="length of a world (default: 200 to 2,000, by its seed)")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="start no world after that")
    parser.add_argument("--without-reference", action="store_true", help="the core alone under the laws")
    options = parser.parse_args()
    begin = time.perf_counter()
    steps = 0
    for seed in range(options.seed, options.seed + options.worlds):
        if time.perf_counter() - begin > options.seconds:
            break
        simulation = Simulation(draw(seed, options.steps), not options.without_reference)
        try:
            steps += simulation.run().steps
        except ViolationError as violation:
            sys.stdout.write(f"seed {seed}, step {simulation.steps}: {violation}\n")
            return 1
    sys.stdout.write(f"{steps} steps, 0 violations, {time.perf_counter() - begin:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
