"""Run with a mutant: ``python -m tests.sim.mutants NAME explore|run [options]``; without a name, list the mutants.

``explore`` is ``stress.explore``, whose workers carry the mutant too; ``run`` is one run, for its report.
"""

from __future__ import annotations

import sys

import click

from stress import explore
from stress.content_swarm import SCENARIO
from stress.harness.options import EXIT_MISUSE, invoke
from stress.harness.run import run_scenario
from tests.sim.mutants.apply import applied
from tests.sim.mutants.table import MUTANTS


def main(argv: list[str]) -> int:
    """Explore or run with the mutant that the first argument names."""
    match argv:
        case [name, "explore" | "run" as what, *rest] if named := [each for each in MUTANTS if each.name == name]:
            with applied(named[0]):
                if what == "run":
                    return run_scenario(SCENARIO, rest)
                code = invoke(explore.COMMAND, [*rest, *named[0].exploration()])
            click.echo(f"replay with: python -m tests.sim.mutants {name} run OPTIONS, as they stand in a replay line")
            return code
        case _:
            click.echo("python -m tests.sim.mutants NAME explore [options] | run [options], where NAME is one of")
            click.echo("\n".join(f"  {mutant.name:22}{mutant.what}" for mutant in MUTANTS))
            return EXIT_MISUSE if argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
