"""Check `scheduler`: simulated worlds in which the C++ core and the reference scheduler run in lock-step.

A case is one world of 200 to 2,000 steps. Knows how worlds become cases; what happens in one is in
`equivalence/simulator/`.
"""

from __future__ import annotations

from typing import cast

from equivalence.cases import Case, Options, derived_seed
from equivalence.findings import Findings
from equivalence.simulator import shrink as shrinking
from equivalence.simulator.simulation import Simulation
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import World, draw

DEFAULT_CASES = 50


def cases(options: Options) -> list[Case]:
    """One world a case, drawn from the seed of the run and the number of the case."""
    count = DEFAULT_CASES if options.cases is None else options.cases
    return [
        Case("scheduler", f"world-{number:05d}", {"seed": derived_seed("scheduler", options.seed, number)})
        for number in range(count)
    ]


def run(case: Case, options: Options) -> Findings:
    """Run one world to its end. A law that does not hold is a difference of kind `law`."""
    findings = Findings()
    simulation = Simulation(world_of(case))
    try:
        simulation.run()
    except ViolationError as violation:
        seed = simulation.world.seed
        findings.differ(f"seed {seed}, step {simulation.steps}", "law", str(violation))
    findings.comparisons += simulation.steps
    return findings


def shrink(case: Case, options: Options) -> Case:
    """The case of a smaller world that breaks the same law, for the replay file."""
    world = world_of(case)
    violation = _violation(world)
    if violation is None:
        return case
    world, _ = shrinking.shrink(world, violation, _violation)
    return Case(case.check, case.name, {"world": world.to_json()})


def world_of(case: Case) -> World:
    """The world of a case: stored in a replay, or drawn from a seed."""
    stored = case.params.get("world")
    if stored is not None:
        return World.from_json(cast("dict[str, object]", stored))
    return draw(int(cast(int, case.params["seed"])))


def _violation(world: World) -> ViolationError | None:
    try:
        Simulation(world).run()
    except ViolationError as violation:
        return violation
    return None
